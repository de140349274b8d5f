// ---- Painting one lane ----------------------------------------------------------------------------------------------

const FAINTEST = 0.3; // how strongly a column is coloured that is hardly busy: no event vanishes
const GAP_FROM = 4; // pixels; marks this wide leave one free on their right
const ROOM = 30; // pixels a mark needs to carry a name

// Paints a lane's events into one row of pixels. Marks wider than a pixel are filled; what is narrower, and the ends of
// the others, adds up by column and part, and the busiest part colours the column, more strongly the busier it is.
// Returns the busy ns within the window, of events that do not overlap; `named` gets the marks with room for a name.
function paintLane(run, lane, depth, scale, look, row, sums, cover, named) {
  const { start, length, code, depth: depths } = run;
  const { from, to, perNs, width } = scale;
  const { partOf, colours, parts, hitParts, room } = look;
  sums.fill(0);
  cover.fill(0);
  const several = lane.depth > 1;
  let busy = 0;
  let taken = 0; // up to where there is a name
  for (let i = firstReaching(run, lane, from); i < lane.end; i++) {
    const begin = start[i];
    if (begin >= to) break;
    const lasts = length[i];
    const end = begin + lasts;
    if (end < from || (several && depths[i] !== depth)) continue;
    busy += Math.min(end, to) - Math.max(begin, from);
    const part = partOf[code[i]];
    let left = (begin - from) * perNs;
    let right = (end - from) * perNs;
    if (left < 0) left = 0;
    if (right > width) right = width;
    const wide = right - left;
    if (wide < 1) {
      const column = left < width ? left | 0 : width - 1;
      const share = lasts === 0 && several ? 1 : wide + 0.01;
      sums[column * parts + part] += share;
      cover[column] += share;
      continue;
    }
    if (wide >= GAP_FROM && right < width) right -= 1;
    const inner = Math.ceil(left);
    const outer = Math.floor(right);
    const colour = colours[part];
    for (let column = inner; column < outer; column++) row[column] = colour;
    if (inner > left) {
      sums[(inner - 1) * parts + part] += inner - left;
      cover[inner - 1] += inner - left;
    }
    if (right > outer && outer >= inner) {
      sums[outer * parts + part] += right - outer;
      cover[outer] += right - outer;
    }
    if (wide >= room && left >= taken) {
      named.push(i, left, right);
      taken = right;
    }
  }
  for (let column = 0; column < width; column++) {
    if (cover[column] === 0) continue;
    const at = column * parts;
    let best = -1;
    for (let part = 0; part < parts; part++) {
      if (part === hitParts && best >= 0) break; // any hit goes before what is none
      if (sums[at + part] > 0 && (best < 0 || sums[at + part] >= sums[at + best])) best = part;
    }
    const strength = look.searching && best < hitParts ? 1 : Math.min(1, FAINTEST + (1 - FAINTEST) * cover[column]);
    row[column] = blend(row[column], colours[best], strength);
  }
  return busy;
}

// Two colours as 0xAABBGGRR, mixed: 0 is all of the first, 1 all of the second.
function blend(under, over, share) {
  if (share >= 1) return over;
  const red = (under & 255) + ((over & 255) - (under & 255)) * share;
  const green = ((under >> 8) & 255) + (((over >> 8) & 255) - ((under >> 8) & 255)) * share;
  const blue = ((under >> 16) & 255) + (((over >> 16) & 255) - ((under >> 16) & 255)) * share;
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

function packed(colour) {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer)[0];
}

function css(colour) {
  return `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
}

// Whether white or dark text is easier to read on a colour.
function inkOn(colour) {
  const light = 0.299 * (colour & 255) + 0.587 * ((colour >> 8) & 255) + 0.114 * ((colour >> 16) & 255);
  return light > 140 ? "#16181D" : "#FFFFFF";
}
