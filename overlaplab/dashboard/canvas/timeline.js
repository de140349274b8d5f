// The Timeline's canvas. Streamlit calls the default export: with bytes, it keeps a run's events (packing.py tells their
// layout), or those of a host; with an object, it draws them. Times are ns; `start` and `length` of events count from the
// run's first one. What comes out of a trace is written by fillText and textContent only. These files are one module:
//
//   events.js      bytes -> typed arrays, and what is asked of them
//   hosts.js       threads of hosts, and what their calls launched
//   painting.js    one lane -> one row of pixels
//   words.js       times and names
//   stretches.js   exposed stretches and neighbours, for the keys
//   timeline.js    TimelineView: layout, window, drawing, input, search, what Python is told

const RUNS = (globalThis.overlaplabRuns ??= { kept: new Map(), views: new Set() });
const KEPT = 3; // runs whose events stay in the browser
const VIEWS = new WeakMap(); // the component's element -> its view

export default function timeline({ data, parentElement, setStateValue, setTriggerValue }) {
  if (data instanceof Uint8Array) return keep(unpack(data));
  let view = VIEWS.get(parentElement);
  if (view === undefined) VIEWS.set(parentElement, (view = new TimelineView(parentElement)));
  const turn = view.update(data, setStateValue, setTriggerValue);
  return () => {
    if (view.turn !== turn) return; // Streamlit called again in the meantime
    view.close();
    VIEWS.delete(parentElement);
  };
}

function keep(run) {
  const whole = "host" in run ? RUNS.kept.get(run.run) : undefined;
  if (whole !== undefined) {
    joinHost(whole, run);
  } else if (!("host" in run)) {
    RUNS.kept.delete(run.id);
    RUNS.kept.set(run.id, run);
    for (const id of RUNS.kept.keys()) if (RUNS.kept.size > KEPT) RUNS.kept.delete(id);
  }
  for (const view of RUNS.views) view.arrived();
}

// ---- The view -------------------------------------------------------------------------------------------------------

const GUTTER = 150; // css pixels, as all that follow
const AXIS = 24;
const BAR = 12; // the lanes' scroll bar
const OVERVIEW = 46;
const CAPTION = 24; // what a picture is of, above it
const FINE = 2; // a picture's pixels per css pixel
const HEIGHTS = { steps: 18, phases: 14, labels: 13, folded: 14, host: 14, stream: 20, exposed: 18 };
const NESTED = 13; // a row of a lane that has several
const FOLDED = { kind: "folded", first: 0, end: 0, depth: 1 }; // a host whose lanes are not shown
const ABOVE = 430; // what of a page stands around the lanes
const RANK_GAP = 8;
const ROOMY = 1.5; // times their height where there are few lanes
const COMPACT = 0.75; // times it where they would not all be seen
const LEAST_SPAN = 20; // ns
const CLICK = 4; // pixels a pointer may move in a click
const SEEN_APART_PX = 2; // stretches that are nearer look like one
const PAUSE = 400; // ms without a change before Python is told
const MISSING = 2000; // ms without the events before Python is asked again
const FONT = "11px Source Sans, Source Sans Pro, Segoe UI, Helvetica, Arial, sans-serif";

class TimelineView {
  constructor(parent) {
    this.root = parent.querySelector(".timeline");
    for (const name of ["stage", "marks", "above", "overview", "scroll", "tip"]) this[name] = this.child(name);
    this.input = this.root.querySelector("input");
    this.turn = 0;
    this.run = null;
    this.from = 0; // the window, ns from the run's zero
    this.to = 1;
    this.range = null; // what was dragged
    this.event = -1; // what was clicked
    this.over = -1; // what the pointer is on
    this.wished = null; // the window that was asked for, until the reader moves
    this.known = [0, 1]; // the window that Python knows
    this.apart = null; // ns: stretches that are nearer are one for N and P, until the reader moves
    this.awaited = null; // an event to be selected once its host is here
    this.unfolded = new Set(); // hosts, by their traces' places
    this.launches = new Map(); // event -> pairs of a call and what it launched
    this.hits = null; // places of the events that were searched for, by time
    this.hit = -1;
    this.rows = [];
    this.painted = 0;
    this.asked = "";
    this.ended = new AbortController();
    this.listen();
    RUNS.views.add(this);
  }

  child(name) {
    return this.root.querySelector(`.${name}`);
  }

  // -- What Python says, and what it is told

  update(data, setStateValue, setTriggerValue) {
    this.setStateValue = setStateValue;
    this.setTriggerValue = setTriggerValue;
    this.data = data;
    this.turn += 1;
    this.arrived();
    return this.turn;
  }

  arrived() {
    const run = this.data && RUNS.kept.get(this.data.id);
    this.child("waiting").hidden = run !== undefined;
    clearTimeout(this.missing);
    if (run === undefined) {
      this.missing = setTimeout(() => this.setTriggerValue("missing", this.data.id), MISSING);
      return;
    }
    if (run !== this.run) {
      Object.assign(this, { run, range: null, event: -1, over: -1, asked: "" });
      this.unfolded.clear();
    }
    const [window, event, , hosts, range] = this.data.asked;
    const asked = JSON.stringify(this.data.asked);
    let isNew = asked !== this.asked;
    if (isNew) {
      clearTimeout(this.telling);
      this.asked = asked;
      this.awaited = Array.isArray(event) ? event : null;
      this.event = Array.isArray(event) ? -1 : (event ?? -1);
      this.range = range;
      for (const place of hosts) this.unfolded.add(place);
      this.wished = this.known = window;
      this.apart = null;
    }
    if (this.wished) {
      this.show(...this.wished, false); // once more where a host has brought earlier events
      const moved = this.window().some((bound, place) => Math.abs(bound - this.known[place]) > 1);
      if (moved) this.tell(0); // the run ends before what was asked for: figures are of what is seen
    }
    const host = this.awaited && run.hosts.get(this.awaited[0]);
    if (host?.lanes) {
      this.event = this.awaited[1] < host.count ? host.at + this.awaited[1] : -1;
      this.awaited = null;
      isNew = true;
    }
    this.askForHost();
    const looks = JSON.stringify([this.data.id, this.data.dark, this.data.lanes, this.data.offsets, run.count]);
    if (looks !== this.looks) {
      this.looks = looks;
      this.dress();
      this.search(this.input.value);
      this.resize();
    }
    if (isNew && this.event >= 0) this.reveal(this.event, true);
    else if (isNew) this.scrollTo(this.data.rank);
    this.describe();
    this.root.dataset.events = run.count;
    this.root.dataset.predicted = this.data.predicted;
  }

  // Asks Python for the first unfolded host that is not here yet.
  askForHost(delay = 0) {
    const place = [...this.unfolded].find((number) => this.run.hosts.get(number)?.lanes === null);
    if (place === this.hostAsked && delay === 0) return;
    clearTimeout(this.asking);
    this.hostAsked = place;
    if (place === undefined) return;
    this.asking = setTimeout(() => {
      this.setTriggerValue("host", [this.run.id, place]);
      this.askForHost(MISSING); // a rerun may be cut short
    }, delay);
  }

  // Tells Python the window, the range, the event and the unfolded hosts, once they have rested.
  tell(delay) {
    clearTimeout(this.telling);
    this.telling = setTimeout(() => {
      this.describe();
      this.known = this.window();
      this.setStateValue("view", {
        id: this.run.id,
        asked: this.data.asked,
        window: this.known,
        range: this.range && this.range.map(Math.round),
        event: this.eventForPython(),
        hosts: [...this.unfolded],
      });
    }, delay);
  }

  eventForPython() {
    if (this.event < 0) return this.awaited;
    const [place, host] = hostOf(this.run, this.event) ?? [null, null];
    return host === null ? this.event : [place, this.event - host.at];
  }

  // Another page was asked for. What is told now would reach the server behind that, which would run this page's
  // part after the other page, and so clear it.
  hush() {
    for (const timer of [this.telling, this.missing, this.asking]) clearTimeout(timer);
  }

  window() {
    const start = Math.round(this.from);
    return [start, Math.max(Math.round(this.to), start + 1)];
  }

  // The window as events count, from the run's first one.
  inView() {
    return [this.from - this.run.base_ns, this.to - this.run.base_ns];
  }

  close() {
    this.ended.abort();
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
    this.hush();
    clearTimeout(this.typing);
    RUNS.views.delete(this);
  }

  // -- Looks

  dress() {
    const { marks, tones } = this.data.colours;
    for (const name of ["ink", "soft", "grid"]) this.root.style.setProperty(`--${name}`, tones[name]);
    this.tones = tones;
    this.ground = packed(getComputedStyle(this.root).getPropertyValue("--st-background-color").trim() || "#fff");
    const solid = this.run.words.map((word) => packed(marks[word])); // then faint ones, of what a search did not find
    this.colours = Uint32Array.from([...solid, ...solid.map((colour) => blend(this.ground, colour, 0.18))]);
    this.inks = solid.map(inkOn);
    this.grid = blend(this.ground, packed(tones.grid), 0.7);
    this.edge = blend(this.ground, packed(tones.soft), 0.35);
    this.launches.clear();
    for (const part of this.root.querySelectorAll("button.host, .unfolds")) part.hidden = this.run.hosts.size === 0;
  }

  // What marks in the visible window stand for: of streams, of hosts, then why time was exposed. Steps and phases carry
  // their names.
  fillLegend() {
    const { run } = this;
    const [from, to] = this.inView();
    const groupOf = { host: 1, exposed: 2 };
    const heads = ["", "host:", "exposed:"];
    const seen = heads.map(() => new Uint8Array(run.words.length));
    for (const { lane } of this.rows) {
      if (lane.kind === "steps" || lane.kind === "phases") continue;
      const into = seen[groupOf[lane.kind] ?? 0];
      for (let i = firstReaching(run, lane, from); i < lane.end && run.start[i] < to; i++) {
        if (run.start[i] + run.length[i] > from || run.length[i] === 0) into[run.part[run.code[i]]] = 1;
      }
    }
    const legend = this.child("legend");
    const text = `${this.data.id} ${this.data.dark} ${seen.map((parts) => parts.join(""))}`;
    if (text === this.legend) return;
    this.legend = text;
    const groups = seen.map((parts, place) => {
      const group = element("div");
      const there = [...parts.keys()].filter((part) => parts[part]);
      if (there.length) group.append(heads[place]);
      for (const part of place === 2 ? there.reverse() : there) {
        const patch = element("i");
        patch.style.background = css(this.colours[part]);
        group.append(element("span", patch, run.words[part]));
      }
      return group;
    });
    legend.replaceChildren(...groups.filter((group) => group.hasChildNodes()));
    this.legendRoom = Math.max(this.legendRoom ?? 0, legend.offsetHeight); // the canvas does not jump when it shrinks
    legend.style.minHeight = `${this.legendRoom}px`;
  }

  // The shown lanes from top to bottom; each host's, or a row to unfold them, stands above its rank's streams.
  lanes() {
    const lanes = [];
    const pending = new Map([...this.run.hosts].map(([place, host]) => [host.rank, [place, host]]));
    for (const number of this.data.lanes) {
      const lane = this.run.lanes[number];
      if ((lane.kind === "stream" || lane.kind === "exposed") && pending.has(lane.rank)) {
        const [place, host] = pending.get(lane.rank);
        pending.delete(lane.rank);
        const opens = this.unfolded.has(place);
        if (opens && host.lanes !== null) lanes.push(...host.lanes);
        else lanes.push({ ...FOLDED, rank: lane.rank, host: place, label: opens ? "host: loading" : "host" });
      }
      lanes.push(lane);
    }
    return lanes;
  }

  // Where each shown lane stands; the rows of a rank follow each other.
  layout() {
    const lanes = this.lanes();
    const heights = (factor) => lanes.map((lane) => Math.round((lane.depth > 1 ? NESTED : HEIGHTS[lane.kind]) * factor) * lane.depth);
    const changes = lanes.filter((lane, place) => place > 0 && lane.rank !== lanes[place - 1].rank).length;
    const whole = (list, gap) => list.reduce((sum, height) => sum + height, 0) + changes * gap + 4;
    const room = Math.max(340, Math.min(880, globalThis.innerHeight - ABOVE));
    const factor = [ROOMY, 1].find((one) => whole(heights(one), RANK_GAP) <= (one > 1 ? room / 2 : room)) ?? COMPACT;
    const gap = factor < 1 ? RANK_GAP / 2 : RANK_GAP;
    let y = 2;
    const tall = heights(factor);
    this.rows = lanes.map((lane, place) => {
      const leads = place === 0 || lane.rank !== lanes[place - 1].rank;
      if (leads && place > 0) y += gap;
      const row = { lane, y, height: tall[place], leads, busy: 0 };
      y += tall[place];
      return row;
    });
    this.content = y + 2;
    this.view = Math.min(this.content, room);
  }

  resize(ratio = globalThis.devicePixelRatio || 1) {
    if (this.run === null) return;
    const width = this.root.clientWidth;
    if (width < GUTTER + 100) return;
    if (width !== this.width) this.legendRoom = 0;
    this.width = width;
    this.layout();
    this.ratio = ratio;
    this.scrolls = this.content > this.view + 1;
    this.plot = width - GUTTER - (this.scrolls ? BAR : 0);
    for (const canvas of [this.marks, this.above]) fitCanvas(canvas, width, this.view + AXIS, this.ratio);
    fitCanvas(this.overview, width, OVERVIEW, this.ratio);
    this.stage.style.height = `${this.view + AXIS}px`;
    Object.assign(this.scroll.style, { top: `${AXIS}px`, height: `${this.view}px` });
    this.scroll.hidden = this.child("scrolling").hidden = !this.scrolls;
    this.scroll.firstElementChild.style.height = `${this.content}px`;
    const columns = Math.round(this.plot * this.ratio);
    this.image = new ImageData(columns, Math.round(this.view * this.ratio));
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.row = new Uint32Array(columns);
    this.empty = new Uint32Array(columns);
    this.cover = new Float32Array(columns);
    this.sums = new Float32Array(columns * this.colours.length);
    this.drawOverview();
    this.paint();
  }

  // -- The window

  show(from, to, tell = true) {
    const [first, last] = this.reach();
    const span = Math.min(Math.max(to - from, LEAST_SPAN), (last - first) * 1.04);
    const slack = span * 0.02;
    const middle = (from + to) / 2;
    const start = Math.max(first - slack, Math.min(middle - span / 2, last + slack - span));
    this.from = start;
    this.to = start + span;
    this.point(-1); // what the pointer is on has moved away
    this.repaint();
    if (!tell) return;
    this.wished = this.apart = null;
    this.tell(PAUSE);
  }

  // All that can be looked at: hosts begin before what they launch first.
  reach() {
    const [first, last] = this.run.bounds;
    return [Math.min(first, this.run.base_ns), Math.max(last, this.run.last_ns)];
  }

  zoom(factor, at = 0.5) {
    const span = Math.max((this.to - this.from) * factor, LEAST_SPAN);
    const time = this.from + (this.to - this.from) * at;
    this.show(time - span * at, time + span * (1 - at));
  }

  pan(share) {
    const shift = (this.to - this.from) * share;
    this.show(this.from + shift, this.to + shift);
  }

  // The selected range or event; the whole run where that is seen already, or nothing is selected.
  fit() {
    const wanted = this.range ?? (this.event < 0 ? null : this.around(this.event));
    const there = wanted && Math.abs(wanted[0] - this.from) + Math.abs(wanted[1] - this.to) < (this.to - this.from) / 50;
    const [from, to] = wanted && !there ? wanted : this.run.extent_ns;
    this.show(from, to);
  }

  around(event) {
    const [begin, end] = this.spanOf(event);
    const room = Math.max(end - begin, LEAST_SPAN) * 0.6;
    return [begin - room, end + room];
  }

  // When an event begins and ends, in ns from the run's zero.
  spanOf(event) {
    const begin = this.run.base_ns + this.run.start[event];
    return [begin, begin + this.run.length[event]];
  }

  rowOf(event) {
    return this.rows.find(({ lane }) => event >= lane.first && event < lane.end);
  }

  // How many pixels of the lanes are scrolled out of sight.
  top() {
    return this.scrolls ? this.scroll.scrollTop : 0;
  }

  // Brings a rank's lanes to the top.
  scrollTo(rank) {
    const row = this.rows.find(({ lane, leads }) => leads && lane.rank === rank);
    if (row !== undefined && this.scrolls) this.scroll.scrollTop = row.y;
  }

  // Brings an event into view without zooming; the window of a link stays where it shows anything of it.
  reveal(event, linked = false) {
    const [begin, end] = this.spanOf(event);
    const span = this.to - this.from;
    const edge = span * 0.05;
    if (linked ? end < this.from || begin > this.to : begin < this.from + edge || end > this.to - edge) {
      const middle = Math.min((begin + end) / 2, begin + span * 0.4);
      this.show(middle - span / 2, middle + span / 2);
    }
    const row = this.rowOf(event);
    if (row === undefined) return;
    const top = this.scroll.scrollTop;
    if (row.y < top || row.y + row.height > top + this.view) this.scroll.scrollTop = row.y - this.view / 2;
    this.repaint();
  }

  // -- Drawing

  repaint() {
    if (this.run === null || this.frame) return;
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.image === undefined) return;
    const began = performance.now();
    const top = this.top();
    const { ratio } = this;
    const columns = this.row.length;
    const [from, to] = this.window();
    const [begin, end] = this.inView();
    const scale = { from: begin, to: end, perNs: columns / (this.to - this.from), width: columns };
    const look = {
      partOf: this.partOf,
      colours: this.colours,
      parts: this.colours.length,
      hitParts: this.run.words.length,
      searching: this.hits !== null,
      room: ROOM * ratio,
    };
    const step = tickStep(this.to - this.from, this.plot / 96);
    this.empty.fill(this.ground);
    for (const tick of this.ticks(step)) {
      const column = Math.round((tick - this.from) * scale.perNs);
      if (column >= 0 && column < columns) this.empty[column] = this.grid;
    }
    this.pixels.fill(this.ground);
    let ground = this.empty;
    const names = [];
    for (const row of this.rows) {
      if (row.leads) ground = this.stepEdges(row, scale);
      if (row.y + row.height < top || row.y > top + this.view) continue;
      row.busy = 0;
      const each = row.height / row.lane.depth;
      for (let depth = 0; depth < row.lane.depth; depth++) {
        const named = [];
        this.row.set(ground);
        row.busy += paintLane(this.run, row.lane, depth, scale, look, this.row, this.sums, this.cover, named);
        const y = row.y + depth * each - top;
        this.fillRow(ground, y, y + each, y + 1, y + each - 1);
        if (named.length) names.push([row, y, each, named]);
      }
    }
    const context = this.penOn(this.marks);
    context.putImageData(this.image, Math.round(GUTTER * ratio), Math.round(AXIS * ratio));
    for (const [row, y, height, named] of names) this.drawNames(context, row, y, height, named);
    this.drawGutter(context, top);
    this.drawAxis(context, step);
    this.drawAbove();
    this.moveLens();
    this.painted += 1;
    Object.assign(this.root.dataset, {
      painted: this.painted,
      window: `${from},${to}`,
      range: this.range ? this.range.map(Math.round).join(",") : "",
      event: this.event,
      frameMs: (performance.now() - began).toFixed(2),
    });
    const span = `${lasting(to - from)} visible, from ${axisTime(from, step / 1000)}`;
    const chosen = this.range ? ` · ${lasting(this.range[1] - this.range[0])} selected` : "";
    this.child("said").textContent = span + chosen;
  }

  // What draws on a canvas in css pixels.
  penOn(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
    return context;
  }

  *ticks(step) {
    for (let tick = Math.ceil(this.from / step) * step; tick <= this.to; tick += step) yield tick;
  }

  // The empty row with a line where each of the rank's steps begins.
  stepEdges(row, scale) {
    const { lane } = row;
    const ground = this.empty.slice();
    if (lane.kind !== "steps") return ground;
    const first = firstReaching(this.run, lane, scale.from);
    for (let i = first; i < lane.end && this.run.start[i] < scale.to; i++) {
      if (i - first > this.plot / 6) return this.empty; // too many to be told apart
      const column = Math.round((this.run.start[i] - scale.from) * scale.perNs);
      if (column >= 0 && column < ground.length) ground[column] = this.edge;
    }
    return ground;
  }

  // Copies the painted row into the image between `y0` and `y1`, and the empty one around it.
  fillRow(ground, above, below, y0, y1) {
    const columns = this.row.length;
    const [low, high] = [above, below].map((y) => Math.round(y * this.ratio));
    const [first, last] = [y0, y1].map((y) => Math.round(y * this.ratio));
    for (let y = Math.max(low, 0); y < Math.min(high, this.image.height); y++) {
      this.pixels.set(y >= first && y < last ? this.row : ground, y * columns);
    }
  }

  drawNames(context, row, y, height, named) {
    if (height < 9) return;
    context.textAlign = "left";
    const steps = row.lane.kind === "steps";
    for (let place = 0; place < named.length; place += 3) {
      const event = named[place];
      const code = this.run.code[event];
      const part = this.partOf[code];
      const left = named[place + 1] / this.ratio;
      const room = named[place + 2] / this.ratio - left - 7;
      const text = fitted(this.nameOn(event, row.lane.kind), Math.floor(room / 5.6));
      if (text === "") continue;
      context.fillStyle = part >= this.inks.length ? this.tones.soft : steps ? this.tones.ink : this.inks[part];
      context.fillText(text, GUTTER + left + 4, AXIS + y + height / 2 + 0.5, room);
    }
  }

  nameOn(event, kind) {
    const code = this.run.code[event];
    if (kind === "exposed") return `${lasting(this.run.length[event])} ${brief(this.run.names[code])}`;
    const word = this.run.words[this.run.part[code]];
    if (kind === "phases" && word !== "host work") return word;
    this.run.briefs ??= [];
    return (this.run.briefs[code] ??= brief(this.run.names[code]));
  }

  drawGutter(context, top) {
    context.clearRect(0, 0, GUTTER, this.view + AXIS);
    clipTo(context, 0, AXIS, GUTTER - 6, this.view);
    const offsets = new Map(this.data.offsets);
    for (const { lane, y, height, leads, busy } of this.rows) {
      const middle = AXIS + y - top + height / 2 + 0.5;
      if (middle < AXIS - height || middle > AXIS + this.view + height) continue;
      context.textAlign = "left";
      if (leads) {
        context.fillStyle = this.tones.ink;
        context.font = `bold ${FONT}`;
        context.fillText(rankName(lane), 4, middle);
        context.font = FONT;
      }
      context.fillStyle = this.tones.soft;
      const sign = lane.host === undefined ? "" : this.unfolded.has(lane.host) ? "▾ " : "▸ ";
      const room = GUTTER - (lane.kind === "exposed" ? 70 : 20);
      if (lane.kind !== "steps") context.fillText(sign + lane.label, 12, middle, room);
      context.textAlign = "right";
      const offset = offsets.get(lane.rank);
      if (leads && offset !== undefined) {
        context.fillText(`clock ${offset > 0 ? "−" : "+"}${lasting(Math.abs(offset))}`, GUTTER - 8, middle);
      }
      if (lane.kind === "exposed") {
        context.fillStyle = busy > 0 ? this.tones.exposed : this.tones.soft;
        context.fillText(lasting(Math.round(busy)), GUTTER - 8, middle);
      }
    }
    context.restore();
  }

  drawAxis(context, step) {
    context.clearRect(GUTTER, 0, this.plot + BAR, AXIS);
    context.fillStyle = this.tones.soft;
    context.textAlign = "left";
    for (const tick of this.ticks(step)) {
      const x = GUTTER + this.across(tick);
      context.fillRect(Math.round(x), AXIS - 6, 1, 6);
      const text = axisTime(tick, step);
      const wide = context.measureText(text).width;
      if (x + 4 + wide <= GUTTER + this.plot) context.fillText(text, x + 4, AXIS / 2);
    }
    context.fillText("time since the run’s zero", 4, AXIS / 2, GUTTER - 10);
  }

  // What changes without the events: the range, the pointer's and the selected event, links across ranks.
  drawAbove() {
    const context = this.penOn(this.above);
    context.clearRect(0, 0, this.plot + GUTTER + BAR, this.view + AXIS);
    if (this.range) {
      const [left, right] = this.range.map((time) => GUTTER + this.across(time));
      clipTo(context, GUTTER, 0, this.plot, this.view + AXIS);
      context.globalAlpha = 0.1;
      context.fillStyle = this.tones.ink;
      context.fillRect(left, 0, right - left, this.view + AXIS);
      context.globalAlpha = 1;
      context.fillRect(left - 0.5, 0, 1, this.view + AXIS);
      context.fillRect(right - 0.5, 0, 1, this.view + AXIS);
      context.restore();
    }
    clipTo(context, GUTTER, AXIS, this.plot, this.view);
    for (const strong of [true, false]) {
      const event = strong ? this.event : this.over;
      if (event < 0) continue;
      const collective = collectiveOf(this.run, event);
      if (collective >= 0) this.drawLinks(context, membersOf(this.run, collective), strong);
      this.drawArrows(context, event, strong);
      const box = this.boxOf(event);
      if (box) this.drawBox(context, box, strong ? 2 : 1);
    }
    context.restore();
  }

  drawBox(context, { left, right, y, height }, line) {
    const wide = Math.max(right - left, 3);
    context.lineWidth = line;
    context.strokeStyle = this.tones.ink;
    context.strokeRect(left - 0.5, y + 0.5, wide, height - 1);
  }

  // A band through a collective's members, from their starts to their ends.
  drawLinks(context, members, strong) {
    const boxes = members.map((event) => this.boxOf(event)).filter((box) => box !== null);
    boxes.sort((a, b) => a.y - b.y);
    context.fillStyle = context.strokeStyle = this.tones.ink;
    context.lineWidth = strong ? 1.5 : 1;
    for (let place = 0; place + 1 < boxes.length; place++) {
      const [a, b] = [boxes[place], boxes[place + 1]];
      const bottom = a.y + a.height;
      context.globalAlpha = 0.1;
      context.fill(pathThrough([a.left, bottom], [a.right, bottom], [b.right, b.y], [b.left, b.y]));
      context.globalAlpha = strong ? 0.9 : 0.6;
      const sides = pathThrough([a.left, bottom], [b.left, b.y]);
      sides.addPath(pathThrough([a.right, bottom], [b.right, b.y]));
      context.stroke(sides);
    }
    context.globalAlpha = 1;
    for (const box of boxes) this.drawBox(context, box, 1);
  }

  // From the calls to what they launched, where both are shown.
  drawArrows(context, event, strong) {
    if (this.unfolded.size === 0) return;
    if (!this.launches.has(event)) {
      if (this.launches.size > 16) this.launches.clear();
      this.launches.set(event, launchesOf(this.run, event));
    }
    context.strokeStyle = context.fillStyle = this.tones.ink;
    context.lineWidth = strong ? 1.5 : 1;
    for (const [call, launched] of this.launches.get(event)) {
      const [a, b] = [this.boxOf(call), this.boxOf(launched)];
      if (a === null || b === null) continue;
      const [x0, y0, x1, y1] = [(a.left + a.right) / 2, a.y + a.height - 1, b.left, b.y];
      const bend = (y1 - y0) / 2;
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1 - 5);
      context.stroke();
      context.fill(pathThrough([x1, y1], [x1 - 4, y1 - 7], [x1 + 4, y1 - 7]));
      this.drawBox(context, call === event ? b : a, 1);
    }
  }

  // Where an event stands; null where its lane is not shown.
  boxOf(event) {
    const row = this.rowOf(event);
    if (row === undefined) return null;
    const height = row.height / row.lane.depth;
    const [left, right] = this.spanOf(event).map((time) => GUTTER + this.across(time));
    return { left, right, y: AXIS + row.y + this.run.depth[event] * height - this.top(), height };
  }

  across(time) {
    return Math.max(-1e5, Math.min(1e5, ((time - this.from) / (this.to - this.from)) * this.plot));
  }

  drawOverview() {
    this.strip = new OffscreenCanvas(this.overview.width, this.overview.height);
    const context = this.penOn(this.strip);
    const { compute, exposed, slots, ranks } = this.run;
    const shown = new Set(this.rows.map(({ lane }) => lane.rank));
    const places = ranks.map((_, place) => place).filter((place) => shown.has(ranks[place]));
    const bottom = OVERVIEW - 4;
    const tall = bottom - 4;
    context.fillStyle = this.tones.grid;
    context.fillRect(GUTTER, 4, this.plot, 1);
    context.fillRect(GUTTER, bottom, this.plot, 1);
    const wide = this.plot / slots;
    for (let slot = 0; slot < slots; slot++) {
      let busy = 0;
      let alone = 0;
      for (const place of places) {
        busy += compute[place * slots + slot];
        alone += exposed[place * slots + slot];
      }
      const scale = tall / (255 * Math.max(places.length, 1));
      const x = GUTTER + slot * wide;
      context.fillStyle = this.tones.compute;
      context.fillRect(x, bottom - busy * scale, wide + 0.3, busy * scale);
      context.fillStyle = this.tones.exposed;
      context.fillRect(x, bottom - (busy + alone) * scale, wide + 0.3, alone * scale);
    }
    context.fillStyle = this.tones.soft;
    context.fillText("whole run, busy", 4, OVERVIEW / 2);
    context.textAlign = "right";
    context.fillText("100 %", GUTTER - 8, 9);
    context.fillText("0 %", GUTTER - 8, bottom - 4);
  }

  // The visible window upon the overview.
  moveLens() {
    const context = this.overview.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.overview.width, OVERVIEW * this.ratio);
    context.drawImage(this.strip, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const [first, last] = this.run.bounds;
    const [left, right] = [this.from, this.to].map((time) => GUTTER + ((time - first) / (last - first)) * this.plot);
    const [low, high] = [Math.max(left, GUTTER), Math.min(Math.max(right, left + 3), GUTTER + this.plot)];
    context.globalAlpha = 0.55;
    context.fillStyle = css(this.ground);
    context.fillRect(GUTTER, 0, low - GUTTER, OVERVIEW);
    context.fillRect(high, 0, GUTTER + this.plot - high, OVERVIEW);
    context.globalAlpha = 1;
    context.strokeStyle = this.tones.ink;
    context.lineWidth = 1.5;
    context.strokeRect(low + 0.75, 0.75, Math.max(high - low - 1.5, 1.5), OVERVIEW - 1.5);
  }

  // What is in view as a file, with the page's title, as other pages' pictures have it, and the legend.
  savePicture() {
    const [page] = document.title.split(" – ");
    const title = this.data.predicted ? `${page} (predicted)` : page;
    this.resize(FINE);
    const legend = this.child("legend");
    const box = legend.getBoundingClientRect();
    const top = CAPTION + box.height + 6;
    const canvas = element("canvas");
    fitCanvas(canvas, this.width, top + OVERVIEW + this.view + AXIS, this.ratio);
    const context = this.penOn(canvas);
    context.fillStyle = css(this.ground);
    context.fillRect(0, 0, this.width, canvas.height);
    context.fillStyle = this.tones.soft;
    context.textAlign = "right";
    context.fillText(this.child("said").textContent, this.width - 4, CAPTION / 2);
    context.textAlign = "left";
    context.fillStyle = this.tones.ink;
    context.font = `bold ${FONT}`;
    context.fillText(title, 4, CAPTION / 2);
    context.font = FONT.replace("11px", "13px"); // as on the page
    for (const part of legend.querySelectorAll("div, span")) this.drawKey(context, part, box);
    for (const part of [this.overview, this.marks, this.above]) {
      const y = top + (part === this.overview ? 0 : OVERVIEW);
      context.drawImage(part, 0, y, part.width / this.ratio, part.height / this.ratio);
    }
    this.resize();
    const name = page.split(" · ").map((part) => part.replaceAll(/[^\w.+-]+/g, "-"));
    canvas.toBlob((blob) => {
      const link = Object.assign(element("a"), { href: URL.createObjectURL(blob), download: `${name.join("_")}.png` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // An entry or the head of a group of the legend, where it stands on the page.
  drawKey(context, part, box) {
    const patch = part.querySelector(":scope > i");
    const words = [...part.childNodes].find((node) => node instanceof Text);
    if (words === undefined) return;
    const range = document.createRange();
    range.selectNode(words);
    const at = range.getBoundingClientRect();
    context.fillText(words.textContent, at.left - box.left, CAPTION + at.top - box.top + at.height / 2);
    if (patch === null) return;
    const { left, top, width, height } = patch.getBoundingClientRect();
    context.save();
    context.fillStyle = patch.style.background;
    context.fillRect(left - box.left, CAPTION + top - box.top, width, height);
    context.restore();
  }

  // -- Input

  listen() {
    const { signal } = this.ended;
    const on = (target, kind, act, more = {}) => target.addEventListener(kind, act, { signal, ...more });
    on(this.stage, "pointerdown", (event) => this.press(event));
    on(this.stage, "pointermove", (event) => this.move(event));
    on(this.stage, "pointerup", (event) => this.release(event));
    on(this.stage, "pointercancel", () => (this.drag = null));
    on(this.stage, "pointerleave", () => this.point((this.pointer = -1)));
    on(this.stage, "wheel", (event) => this.wheel(event), { passive: false });
    on(this.root, "keydown", (event) => this.key(event));
    const around = this.root.getRootNode().host; // keys count, too, where the page itself has the focus
    on(document, "keydown", (event) => event.target !== around && event.target.contains(around) && this.key(event));
    on(this.scroll, "scroll", () => {
      this.point(-1);
      this.repaint();
    });
    on(this.overview, "pointerdown", (event) => this.pressOverview(event));
    on(this.overview, "pointermove", (event) => this.moveOverview(event));
    for (const kind of ["pointerup", "pointercancel"]) on(this.overview, kind, () => (this.carried = undefined));
    on(this.input, "input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.search(this.input.value), 120);
    });
    on(this.input, "keydown", (event) => this.searchKey(event));
    const press = (name, act) => on(this.child(name), "click", () => this.run && act());
    press("in", () => this.zoom(0.5));
    press("out", () => this.zoom(2));
    press("left", () => this.pan(-0.3));
    press("right", () => this.pan(0.3));
    press("fit", () => this.fit());
    press("next", () => this.jump(1));
    press("previous", () => this.jump(-1));
    press("after", () => this.stretch(1));
    press("before", () => this.stretch(-1));
    press("longest", () => this.longest(false));
    press("worst", () => this.longest(true));
    press("host", () => this.toggleHost(this.hostInFocus()));
    press("png", () => this.savePicture());
    on(document, "click", (event) => leads(event.target) && this.hush(), { capture: true });
    on(globalThis, "popstate", () => this.hush());
    this.resized = new ResizeObserver(() => this.root.clientWidth !== this.width && this.resize());
    this.resized.observe(this.root);
    on(globalThis, "resize", () => this.resize());
  }

  place(event) {
    const box = this.stage.getBoundingClientRect();
    return [event.clientX - box.left - GUTTER, event.clientY - box.top - AXIS];
  }

  timeAt(x) {
    return this.from + (x / this.plot) * (this.to - this.from);
  }

  press(event) {
    if (this.run === null || event.target === this.scroll || event.button > 1) return;
    const [x, y] = this.place(event);
    const host = this.hostAt(x, y);
    if (host !== undefined) return this.toggleHost(host);
    if (x < 0 || x > this.plot) return;
    const pans = event.shiftKey || event.button === 1;
    if (pans) event.preventDefault();
    this.stage.setPointerCapture(event.pointerId);
    this.drag = { x, y, pans, from: this.from, to: this.to, top: this.scroll.scrollTop, moved: false };
    this.stage.focus({ preventScroll: true });
  }

  move(event) {
    if (this.run === null) return;
    const [x, y] = this.place(event);
    this.pointer = x;
    const { drag } = this;
    if (!drag) {
      const found = x >= 0 && x <= this.plot ? this.find(x, y) : null;
      this.point(found?.event ?? -1, found, x);
      this.stage.style.cursor = this.hostAt(x, y) === undefined ? "" : "pointer";
      return;
    }
    drag.moved ||= Math.abs(x - drag.x) + (drag.pans ? Math.abs(y - drag.y) : 0) > CLICK;
    if (!drag.moved) return;
    this.tip.hidden = true;
    if (drag.pans) {
      const shift = ((x - drag.x) / this.plot) * (drag.to - drag.from);
      this.scroll.scrollTop = drag.top - (y - drag.y);
      this.show(drag.from - shift, drag.to - shift);
    } else {
      const times = [drag.x, Math.max(0, Math.min(x, this.plot))].map((at) => this.timeAt(at));
      this.range = times.sort((a, b) => a - b);
      this.repaint();
    }
  }

  rowAt(y) {
    const at = y + this.top();
    return this.rows.find((row) => at >= row.y && at < row.y + row.height);
  }

  // The host that a press folds or unfolds: on its lanes' names, and all along the row in their place.
  hostAt(x, y) {
    if (y < 0 || y > this.view) return undefined;
    const lane = this.rowAt(y)?.lane;
    return lane?.kind === "folded" || (lane?.kind === "host" && x < 0) ? lane.host : undefined;
  }

  toggleHost(place) {
    if (place === undefined) return;
    if (!this.unfolded.delete(place)) this.unfolded.add(place);
    else if (this.event >= 0 && hostOf(this.run, this.event)?.[0] === place) this.event = -1;
    this.awaited = null;
    this.askForHost();
    this.search(this.input.value);
    this.resize();
    this.tell(0);
  }

  // The rank that keys are about: that of what is selected, else the one that the page is about, else the uppermost.
  rankInFocus() {
    const selected = this.event < 0 ? undefined : laneOf(this.run, this.event).rank;
    const shown = this.rows.map(({ lane }) => lane.rank);
    const [rank] = [selected, this.data.rank, ...shown].filter((each) => shown.includes(each)); // null is a rank, too
    return rank;
  }

  hostInFocus() {
    const rank = this.rankInFocus();
    return [...this.run.hosts.keys()].find((place) => this.run.hosts.get(place).rank === rank);
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag || this.run === null) return;
    if (!drag.moved && !drag.pans) {
      const found = this.find(...this.place(event));
      this.event = found?.event ?? -1;
      this.range = null;
      this.nameSelected();
      this.repaint();
    }
    if (this.range && Math.round(this.range[0]) === Math.round(this.range[1])) this.range = null;
    this.tell(drag.pans ? PAUSE : 0);
  }

  wheel(event) {
    if (this.run === null || this.root.getRootNode().activeElement !== this.stage) return; // the page scrolls
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    if (event.shiftKey) this.scroll.scrollTop += (event.deltaY || event.deltaX) * unit;
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX * unit) / this.plot);
    else this.zoom(Math.exp(event.deltaY * unit * 0.0018), this.anchor(this.place(event)[0]));
  }

  anchor(x) {
    return Math.max(0, Math.min(1, x / this.plot));
  }

  key(event) {
    if (this.run === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.pointer >= 0 && this.pointer <= this.plot ? this.anchor(this.pointer) : 0.5;
    const scroll = (share) => () => (this.scroll.scrollTop += this.view * share);
    const plain = { "+": "w", "-": "s", ArrowLeft: "a", ArrowRight: "d" }[event.key] ?? event.key;
    const named = event.shiftKey && /^(Arrow|Enter)/.test(event.key) ? `Shift ${event.key}` : plain;
    const act = {
      w: () => this.zoom(0.8, at),
      s: () => this.zoom(1.25, at),
      a: () => this.pan(-0.15),
      d: () => this.pan(0.15),
      f: () => this.fit(),
      n: () => this.stretch(1),
      p: () => this.stretch(-1),
      l: () => this.longest(event.shiftKey),
      h: () => this.toggleHost(this.hostInFocus()),
      Escape: () => this.clear(),
      "/": () => this.input.focus(),
      "Shift ArrowLeft": () => this.walkAlong(-1),
      "Shift ArrowRight": () => this.walkAlong(1),
      "Shift ArrowUp": () => this.walkAcross(-1),
      "Shift ArrowDown": () => this.walkAcross(1),
      ...(event.target === this.stage && { Enter: () => this.enter() }), // elsewhere it presses a button
      ...(event.currentTarget === this.root &&
        this.scrolls && { ArrowUp: scroll(-0.1), ArrowDown: scroll(0.1), PageUp: scroll(-0.8), PageDown: scroll(0.8) }),
    }[named.length === 1 ? named.toLowerCase() : named];
    if (act === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  // The first event that begins in view, in the lane of the selected one, else in the rank's first stream.
  enter() {
    const selected = this.event < 0 ? null : laneOf(this.run, this.event);
    const lanes = this.rows.map(({ lane }) => lane);
    const rank = this.rankInFocus();
    const stream = lanes.find((lane) => lane.kind === "stream" && lane.rank === rank);
    const lane = lanes.includes(selected) ? selected : (stream ?? lanes[0]);
    const [from, to] = this.inView();
    let event = firstReaching(this.run, lane, from);
    while (event < lane.end && this.run.start[event] < from) event++;
    if (event < lane.end && this.run.start[event] < to) this.select(event);
    else this.select(eventNear(this.run, lane, 0, from));
  }

  walkAlong(way) {
    if (this.event < 0) this.enter();
    else this.select(neighbourOf(this.run, laneOf(this.run, this.event), this.event, way));
  }

  // To the event at the same time in the next row that has one.
  walkAcross(way) {
    if (this.event < 0) return this.enter();
    const rows = this.rows.flatMap(({ lane }) => Array.from({ length: lane.depth }, (_, depth) => [lane, depth]));
    const here = laneOf(this.run, this.event);
    const depth = here.depth > 1 ? this.run.depth[this.event] : 0;
    const time = Math.max(this.run.start[this.event], this.from - this.run.base_ns);
    let place = rows.findIndex(([lane, row]) => lane === here && row === depth);
    for (place += way; place >= 0 && place < rows.length; place += way) {
      const event = eventNear(this.run, ...rows[place], time);
      if (event >= 0) return this.select(event);
    }
  }

  select(event) {
    if (event < 0) return;
    this.event = event;
    this.range = null;
    this.reveal(event);
    this.tell(PAUSE);
  }

  // To the next exposed stretch of the rank (1) or the one before (-1) from what is selected, if it begins in view; else
  // to one in view. What looks like one stretch at the first press is one.
  stretch(way) {
    const lane = this.exposedLane();
    if (lane === undefined) return;
    const apart = this.apart ?? (SEEN_APART_PX * (this.to - this.from)) / this.plot;
    const list = stretchesOf(this.run, lane, apart);
    const start = this.run.start[this.event];
    const isExposed = this.event >= lane.first && this.event < lane.end;
    const selected = isExposed ? list.find(({ begin, end }) => begin <= start && start < end)?.begin : start;
    const [from, to] = this.inView();
    const isSeen = selected >= from && selected <= to; // not of no event, whose start is undefined
    this.showStretch(lane, list, stretchBeside(list, isSeen ? selected : way > 0 ? from - 1 : to + 1, way));
    this.apart = apart; // where that has zoomed, too: the next one is of the same list
  }

  // To the rank's longest exposed stretch, of the step in the middle of the window or of all steps.
  longest(everywhere) {
    const lane = this.exposedLane();
    if (lane === undefined) return;
    const { run } = this;
    const middle = (this.from + this.to) / 2 - run.base_ns;
    const steps = this.rows.find((row) => row.lane.kind === "steps" && row.lane.rank === lane.rank)?.lane;
    const step = steps === undefined ? -1 : eventNear(run, steps, 0, middle);
    const within = everywhere || step < 0 ? [-Infinity, Infinity] : [run.start[step], run.start[step] + run.length[step]];
    const list = stretchesOf(run, lane);
    this.showStretch(lane, list, longestStretch(list, ...within), everywhere || step < 0 ? " of the run" : " of the step");
  }

  exposedLane() {
    const rank = this.rankInFocus();
    return this.rows.find(({ lane }) => lane.kind === "exposed" && lane.rank === rank)?.lane;
  }

  // Selects a stretch: its longest mark and, if it has several, all of it; zooms where it would be too narrow or wide.
  showStretch(lane, list, place, longest = "") {
    const words = this.child("stretch");
    if (place < 0 || list.length === 0) {
      words.textContent = "none exposed";
      return;
    }
    const { begin, end, event, marks, exposed } = list[place];
    const [from, to] = [begin, end].map((time) => time + this.run.base_ns);
    const share = (to - from) / (this.to - this.from);
    if (share > 0.9 || share * this.plot < (longest ? this.plot / 20 : 12)) {
      const room = Math.max(to - from, LEAST_SPAN) * (share > 0.9 ? 0.15 : 3);
      this.show(from - room, to + room);
    }
    this.select(event);
    this.range = marks > 1 ? [from, to] : null;
    const which = longest ? `longest${longest}` : `${grouped(place + 1)} of ${grouped(list.length)}`;
    words.textContent = `${which}, rank ${lane.rank ?? "unknown"}: ${lasting(exposed)}`;
  }

  clear() {
    this.child("stretch").textContent = "";
    this.event = -1;
    this.range = null;
    this.input.value = "";
    this.search("");
    this.repaint();
    this.tell(0);
  }

  // The overview: a press outside the window moves it there.
  pressOverview(event) {
    if (this.run === null || event.button !== 0) return;
    const time = this.overviewTime(event);
    const span = this.to - this.from;
    if (time < this.from || time > this.to) this.show(time - span / 2, time + span / 2);
    this.carried = time - this.from;
    this.overview.setPointerCapture(event.pointerId);
  }

  moveOverview(event) {
    if (this.carried === undefined) return;
    const from = this.overviewTime(event) - this.carried;
    this.show(from, from + this.to - this.from);
  }

  overviewTime(event) {
    const [first, last] = this.run.bounds;
    const x = event.clientX - this.overview.getBoundingClientRect().left - GUTTER;
    return first + (x / this.plot) * (last - first);
  }

  // The event at a place: the innermost one there, else the longest within the pixel; and how many share the pixel.
  find(x, y) {
    const row = this.rowAt(y);
    if (row === undefined || y < 0 || y > this.view) return null;
    const { lane } = row;
    const depth = Math.floor((y + this.top() - row.y) / (row.height / lane.depth));
    const time = this.timeAt(x) - this.run.base_ns;
    const pixel = (this.to - this.from) / this.plot;
    let best = -1;
    let inside = false;
    let count = 0;
    for (let i = firstReaching(this.run, lane, time - 2 * pixel); i < lane.end; i++) {
      const begin = this.run.start[i];
      const end = begin + this.run.length[i];
      if (begin > time + 2 * pixel) break;
      if (end < time - 2 * pixel || (lane.depth > 1 && this.run.depth[i] !== depth)) continue;
      if (end >= time - pixel / 2 && begin <= time + pixel / 2) count += 1;
      const holds = begin <= time && time < end && end - begin > 2 * pixel;
      if (holds || (!inside && (best < 0 || this.run.length[i] > this.run.length[best]))) best = i;
      inside ||= holds;
    }
    return best < 0 ? null : { event: best, row, count: inside ? 1 : Math.max(count, 1) };
  }

  point(event, found, x) {
    const changed = event !== this.over;
    this.over = event;
    this.tip.hidden = event < 0;
    if (event >= 0) this.fillTip(found, x);
    if (changed && this.run !== null) this.drawAbove();
  }

  // Below the lane that it is about, or above it: it never hides that lane.
  fillTip({ event, row, count }, x) {
    const code = this.run.code[event];
    const lane = laneOf(this.run, event);
    const full = this.run.names[code];
    const name = full.length > 240 ? `${full.slice(0, 160)}…${full.slice(-79)}` : full;
    const lines = [
      `${lane.kind === "exposed" ? "" : `${this.run.words[this.run.part[code]]} · `}${rankName(lane)}, ${lane.label}`,
      `${lasting(this.run.length[event])}, from ${axisTime(this.run.base_ns + this.run.start[event], 1e3)}`,
    ];
    if (count > 1) lines.push(`the longest of ${grouped(count)} events here: zoom in to see each`);
    this.tip.replaceChildren(element("b", name), ...lines.map((line) => element("span", line)));
    const { offsetWidth: wide, offsetHeight: tall } = this.tip;
    const left = x + 14 + wide > this.plot ? GUTTER + x - wide - 14 : GUTTER + x + 14;
    const above = AXIS + row.y - this.top();
    const below = above + row.height + 4;
    const top = below + tall > this.view + AXIS && above - tall - 4 >= 0 ? above - tall - 4 : below;
    Object.assign(this.tip.style, { left: `${Math.max(left, 0)}px`, top: `${top}px` });
  }

  // -- Search

  search(text) {
    const { run } = this;
    clearTimeout(this.typing);
    if (run === null) return;
    const words = run.words.length;
    const needle = text.trim().toLowerCase();
    if (needle === "") {
      this.hits = null;
      this.partOf = run.part;
    } else {
      run.lower ??= run.names.map((name) => name.toLowerCase());
      const found = Uint8Array.from(run.lower, (name) => (name.includes(needle) ? 1 : 0));
      this.partOf = run.part.map((part, code) => (found[code] ? part : part + words));
      this.hits = hitsOf(run, this.lanes(), found);
    }
    this.searched = text;
    this.hit = -1;
    this.tellHits();
    this.repaint();
  }

  tellHits() {
    const count = this.hits?.length ?? 0;
    const none = count === 0 ? "no hit" : `${grouped(count)} hit${count === 1 ? "" : "s"}`;
    const said = this.hits === null ? "" : this.hit < 0 ? none : `${grouped(this.hit + 1)} of ${grouped(count)}`;
    this.child("hits").textContent = said;
    this.root.dataset.hits = said;
    for (const name of ["previous", "next"]) this.child(name).disabled = count === 0;
  }

  // To the next hit (1) or the one before (-1); at first to the one nearest after the window's start.
  jump(way) {
    const count = this.hits?.length ?? 0;
    if (count === 0) return;
    if (this.hit < 0) {
      const from = this.from - this.run.base_ns;
      const next = firstPlace(0, count, (hit) => this.run.start[this.hits[hit]] >= from);
      this.hit = way > 0 ? next % count : (next - 1 + count) % count;
    } else {
      this.hit = (this.hit + way + count) % count;
    }
    this.event = this.hits[this.hit];
    this.tellHits();
    this.reveal(this.event);
    this.tell(PAUSE);
  }

  searchKey(event) {
    event.stopPropagation();
    if (event.key === "Enter") {
      if (this.searched !== this.input.value) this.search(this.input.value);
      this.jump(event.shiftKey ? -1 : 1);
      event.preventDefault();
    } else if (event.key === "Escape") {
      this.clear();
      this.stage.focus({ preventScroll: true });
      event.preventDefault();
    }
  }

  // -- For those who do not see it

  describe() {
    this.fillLegend();
    this.nameSelected();
    this.root.querySelector("button.host").ariaExpanded = String(this.unfolded.has(this.hostInFocus()));
    const ranks = new Set(this.rows.map(({ lane }) => lane.rank)).size;
    const lanes = this.rows.filter(({ lane }) => lane.kind !== "folded").length;
    const [from, to] = this.window();
    const exposed = this.rows
      .filter(({ lane }) => lane.kind === "exposed")
      .slice(0, 16)
      .map(({ lane }) => `rank ${lane.rank ?? "unknown"}: ${lasting(busyWithin(this.run, lane, from, to))}`);
    const chosen = this.event < 0 ? "" : ` Selected: ${this.run.names[this.run.code[this.event]].slice(0, 120)}.`;
    this.stage.setAttribute(
      "aria-label",
      `Timeline of ${ranks} ${ranks === 1 ? "rank" : "ranks"} in ${lanes} lanes, ` +
        `${grouped(this.run.count)} events. Visible: ${lasting(to - from)} from ${axisTime(from, 1e3)}. ` +
        `Exposed communication there: ${exposed.join(", ") || "none"}.${chosen} ` +
        "Keys: W and S zoom, A and D pan, F fits, N and P go to the next and the previous exposed stretch, L to the " +
        "longest of the step, Shift L of the run, Enter selects an event, Shift and an arrow the one beside it, H shows " +
        "the host, slash searches, Escape clears. The same figures stand in tables below.",
    );
  }

  // The selected event in a line; all of it stands below.
  nameSelected() {
    const { run, event } = this;
    const place = this.child("chosen");
    let text = "";
    if (event >= 0) {
      const lane = laneOf(run, event);
      const name = brief(run.names[run.code[event]]).slice(0, 80);
      const when = `${lasting(run.length[event])} from ${axisTime(run.base_ns + run.start[event], 1e3)}`;
      text = `${this.range === null ? "Selected" : "Selected mark"}: ${name}, ${rankName(lane)}, ${lane.label}, ${when}`;
    }
    if (place.textContent !== text) place.textContent = text;
  }
}

// Until `restore`, what is drawn beside this rectangle does not show.
function clipTo(context, ...rectangle) {
  context.save();
  context.beginPath();
  context.rect(...rectangle);
  context.clip();
}

function pathThrough(...points) {
  return new Path2D(`M${points.map((point) => point.join(" ")).join("L")}`);
}

function fitCanvas(canvas, width, height, ratio) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

// A new element; text in it stays text.
function element(kind, ...content) {
  const made = document.createElement(kind);
  made.append(...content);
  return made;
}

// Whether a click there opens another page.
function leads(element) {
  const link = element.closest?.("a[href]");
  return link != null && new URL(link.href).pathname !== location.pathname;
}

export { axisTime, brief, fitted, lasting, longestStretch, paintLane, stretchBeside, stretchesOf, unpack }; // for tests
