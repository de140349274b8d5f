// ---- Exposed stretches, and neighbours ------------------------------------------------------------------------------

// A lane's exposed time: marks that touch, or are at most so far `apart`, are one stretch, whatever their causes; `event`
// is the longest of them, `exposed` what all of them take.
function stretchesOf(run, lane, apart = 0) {
  if (lane.stretches?.apart === apart) return lane.stretches;
  const list = [];
  let last = null;
  for (let i = lane.first; i < lane.end; i++) {
    const begin = run.start[i];
    const end = begin + run.length[i];
    if (last !== null && begin <= last.end + apart) {
      last.exposed += Math.max(end - Math.max(begin, last.end), 0);
      last.end = Math.max(last.end, end);
      last.marks += 1;
      if (run.length[i] > run.length[last.event]) last.event = i;
    } else {
      list.push((last = { begin, end, event: i, marks: 1, exposed: end - begin }));
    }
  }
  return (lane.stretches = Object.assign(list, { apart }));
}

// The stretch after a time or, going back, before one; around the ends of the list.
function stretchBeside(list, time, way) {
  const place = way > 0 ? list.findIndex(({ begin }) => begin > time) : list.findLastIndex(({ begin }) => begin < time);
  return place >= 0 ? place : way > 0 ? 0 : list.length - 1;
}

// The longest stretch that a span of time touches; -1 for none.
function longestStretch(list, from, to) {
  let best = -1;
  list.forEach(({ begin, end }, place) => {
    if (end <= from || begin >= to) return;
    if (best < 0 || end - begin > list[best].end - list[best].begin) best = place;
  });
  return best;
}

// The event beside one in its row of the lane; -1 at its ends.
function neighbourOf(run, lane, event, way) {
  for (let i = event + way; i >= lane.first && i < lane.end; i += way) {
    if (lane.depth === 1 || run.depth[i] === run.depth[event]) return i;
  }
  return -1;
}

// In a row of a lane the event at a time, else the next one, else the last one before; -1 in an empty row.
function eventNear(run, lane, depth, time) {
  let last = -1;
  for (let i = firstReaching(run, lane, time); i < lane.end; i++) {
    if (lane.depth > 1 && run.depth[i] !== depth) continue;
    if (run.start[i] + run.length[i] > time || run.start[i] === time) return i;
  }
  for (let i = lane.first; i < lane.end && run.start[i] < time; i++) if (lane.depth === 1 || run.depth[i] === depth) last = i;
  return last;
}
