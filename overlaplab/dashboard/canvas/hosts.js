// ---- The host's threads ---------------------------------------------------------------------------------------------
// They come rank by rank, when the reader unfolds them, and their events are put behind those that the run has: what
// holds of other lanes holds of theirs, and no event's place changes.

function joinHost(run, part) {
  const host = run.hosts.get(part.host);
  if (host === undefined || host.lanes !== null) return;
  const base = Math.min(run.base_ns, part.base_ns);
  const last = Math.max(run.last_ns, part.last_ns);
  const wide = last - base < 2 ** 32 ? Uint32Array : Float64Array;
  const earlier = run.base_ns - base; // a call goes before what it launches, which may be the run's first event
  const [before, words, names] = [run.count, run.words.length, run.names.length];
  run.start = joinArrays(wide, run.start, earlier, part.start, part.base_ns - base);
  run.length = joinArrays(wide, run.length, 0, part.length, 0);
  run.code = joinArrays(Uint32Array, run.code, 0, part.code, names);
  // Whatever the part's reach and depth begin with: `measureLane` sets them.
  run.reach = joinArrays(Float64Array, run.reach, earlier, part.length, 0);
  run.depth = joinArrays(Uint8Array, run.depth, 0, part.start, 0);
  run.words.push(...part.words.filter((word) => !run.words.includes(word)));
  const places = Uint8Array.from(part.words, (word) => run.words.indexOf(word));
  run.part = joinArrays(Uint8Array, run.part, 0, part.part.map((number) => places[number]), 0);
  run.names = run.names.concat(part.names);
  run.first = joinArrays(Uint32Array, run.first.subarray(0, -1), 0, part.first, before);
  run.base_ns = base;
  run.last_ns = last;
  run.count = run.start.length;
  run.lower = undefined;
  host.lanes = part.lanes.map((lane, number) => {
    const joined = { ...lane, rank: host.rank, host: part.host, label: `${lane.label} (host)` };
    joined.first = before + part.first[number];
    joined.end = before + part.first[number + 1];
    measureLane(run, joined);
    run.lanes.push(joined);
    return joined;
  });
  host.at = before;
  host.count = run.count - before;
  host.calls = part.calls.map((place) => place + before);
  host.launched = part.launched;
  for (const lane of run.lanes) lane.stretches = undefined; // their times may count from another base
}

// Two arrays behind each other, a number added to all of each.
function joinArrays(Type, first, more, second, further) {
  const joined = new Type(first.length + second.length);
  if (more === 0) joined.set(first);
  else for (let i = 0; i < first.length; i++) joined[i] = first[i] + more;
  const at = first.length;
  for (let i = 0; i < second.length; i++) joined[at + i] = second[i] + further;
  return joined;
}

// The host that an event is of, if it is one's.
function hostOf(run, event) {
  for (const [place, host] of run.hosts) {
    if (host.lanes !== null && event >= host.at && event < host.at + host.count) return [place, host];
  }
  return null;
}

const MOST_ARROWS = 64; // of one event: an operator may launch thousands

// Pairs of a call and what it launched: of a device's event its own, of a host's event those within it.
function launchesOf(run, event) {
  const lane = laneOf(run, event);
  const pairs = [];
  if (lane.kind === "stream") {
    for (const host of run.hosts.values()) {
      if (host.lanes === null || host.rank !== lane.rank) continue;
      const place = host.launched.indexOf(event);
      if (place >= 0) pairs.push([host.calls[place], event]);
    }
  } else if (lane.kind === "host") {
    const { calls, launched } = run.hosts.get(lane.host);
    const end = run.start[event] + run.length[event];
    const first = firstPlace(0, calls.length, (place) => calls[place] >= event);
    for (let i = first; i < calls.length && pairs.length < MOST_ARROWS; i++) {
      if (calls[i] >= lane.end || run.start[calls[i]] >= Math.max(end, run.start[event] + 1)) break;
      pairs.push([calls[i], launched[i]]);
    }
  }
  return pairs;
}
