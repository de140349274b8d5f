// ---- Unpacking ------------------------------------------------------------------------------------------------------

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float64: Float64Array };
const DEPTHS = { labels: 4, stream: 3, host: 5 }; // most rows of a lane whose marks overlap: operators call operators
const SELDOM = 0.02; // of a lane's marks: where fewer overlap, one row will do

function unpack(bytes) {
  const whole = bytes.slice(); // a copy starts at a multiple of 8
  const size = new DataView(whole.buffer).getUint32(0, true);
  const run = JSON.parse(new TextDecoder().decode(whole.subarray(4, 4 + size)));
  for (const [name, [type, at, count]] of Object.entries(run.arrays)) {
    run[name] = new ARRAYS[type](whole.buffer, 4 + size + at, count);
  }
  run.count = run.start.length;
  run.reach = new Float64Array(run.count); // the latest end so far in the lane: what a binary search needs
  run.depth = new Uint8Array(run.count); // the row within a lane: see `stack`
  if ("host" in run) return run; // part of a run: see `joinHost`
  run.lanes.forEach((lane, number) => {
    lane.first = run.first[number];
    lane.end = run.first[number + 1];
    measureLane(run, lane);
  });
  run.bounds = [Math.min(run.base_ns, run.extent_ns[0]), Math.max(run.last_ns, run.extent_ns[1])];
  run.hosts = new Map(run.hosts.map(([place, rank]) => [place, { rank, lanes: null }]));
  return run;
}

// How many rows the lane takes, and for each event its row and how far it and those before it reach.
function measureLane(run, lane) {
  lane.depth = lane.kind in DEPTHS ? stack(run, lane, DEPTHS[lane.kind]) : 1;
  let reach = -Infinity;
  for (let i = lane.first; i < lane.end; i++) {
    reach = Math.max(reach, run.start[i] + run.length[i]);
    run.reach[i] = reach;
  }
}

// Puts marks that overlap into rows below each other; returns how many rows.
function stack(run, lane, most) {
  const ends = [];
  let below = 0;
  for (let i = lane.first; i < lane.end; i++) {
    const begin = run.start[i];
    let row = 0;
    while (row < ends.length && ends[row] > begin) row++;
    row = Math.min(row, most - 1);
    if (row > 0) below += 1;
    ends[row] = Math.max(ends[row] ?? 0, begin + run.length[i]);
    run.depth[i] = row;
  }
  if (below >= SELDOM * (lane.end - lane.first) && below > 0) return ends.length;
  run.depth.fill(0, lane.first, lane.end);
  return 1;
}

// The first place from `low` on from which something holds; `high` where there is none.
function firstPlace(low, high, holds) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The first event of the lane that may reach beyond a time.
function firstReaching(run, lane, time) {
  return firstPlace(lane.first, lane.end, (event) => run.reach[event] >= time);
}

// How many ns of a window (from the run's zero) a lane's events take, which do not overlap.
function busyWithin(run, lane, from, to) {
  const [low, high] = [from - run.base_ns, to - run.base_ns];
  let busy = 0;
  for (let i = firstReaching(run, lane, low); i < lane.end && run.start[i] < high; i++) {
    busy += Math.min(run.start[i] + run.length[i], high) - Math.max(run.start[i], low);
  }
  return busy;
}

function collectiveOf(run, event) {
  const place = firstPlace(0, run.linked.length, (linked) => run.linked[linked] >= event);
  return run.linked[place] === event ? run.collective[place] : -1;
}

function membersOf(run, collective) {
  if (run.members === undefined) {
    run.members = new Map();
    run.collective.forEach((index, place) => {
      if (!run.members.has(index)) run.members.set(index, []);
      run.members.get(index).push(run.linked[place]);
    });
  }
  return run.members.get(collective) ?? [];
}

function laneOf(run, event) {
  return run.lanes[firstPlace(1, run.lanes.length, (lane) => run.first[lane] > event) - 1];
}

// The places of the events whose code was found, by their start.
function hitsOf(run, lanes, found) {
  let count = 0;
  const places = new Uint32Array(run.count);
  for (const { first, end } of lanes) {
    for (let i = first; i < end; i++) if (found[run.code[i]]) places[count++] = i;
  }
  // A start and a place in one number, since numbers sort fast: 53 bits hold both, the start perhaps in coarser units.
  const many = 2 ** Math.ceil(Math.log2(run.count + 1));
  const unit = Math.max(1, Math.ceil(((run.last_ns - run.base_ns + 1) * many) / 2 ** 53));
  const keys = Float64Array.from(places.subarray(0, count), (place) => Math.floor(run.start[place] / unit) * many + place);
  return Uint32Array.from(keys.sort(), (key) => key % many);
}
