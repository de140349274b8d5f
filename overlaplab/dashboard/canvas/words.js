// ---- Words ----------------------------------------------------------------------------------------------------------

// A time of the axis in ms (of long runs in s), with the digits that a step of so many ns needs.
function axisTime(ns, step) {
  const seconds = step >= 1e9;
  const digits = Math.max(0, Math.ceil(-Math.log10(step / (seconds ? 1e9 : 1e6)) - 1e-9));
  const value = ns / (seconds ? 1e9 : 1e6);
  const text = value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${/[1-9]/.test(text) ? text : text.replace("-", "")} ${seconds ? "s" : "ms"}`;
}

// A count with commas between thousands.
function grouped(value) {
  return value.toLocaleString("en-US");
}

// A duration in the unit that suits it.
function lasting(ns) {
  if (ns === 0) return "0 ms";
  const [unit, scale] = ns < 1e3 ? ["ns", 1] : ns < 1e6 ? ["µs", 1e3] : ns < 1e10 ? ["ms", 1e6] : ["s", 1e9];
  const value = ns / scale;
  return `${value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 3 : value < 1000 ? 2 : 1 })} ${unit}`;
}

// What of a name tells most in little room: a C++ kernel's own name, without its namespaces and arguments; of words what
// goes before the first comma or colon.
function brief(name) {
  const bare = name.replace(/^void /, "").replace(/\(anonymous namespace\)::/g, "");
  const own = bare.slice(0, bare.search(/[<(,]|: |$/));
  const at = own.lastIndexOf("::");
  return (at >= 0 && at + 2 < own.length ? own.slice(at + 2) : own || name).trim();
}

// What of a mark's name so many letters hold; of a bucket its number, so that narrow ones are named alike.
function fitted(name, letters) {
  if (name.length <= letters) return name;
  const number = name.replace(/^bucket (?=\d+$)/, "b");
  if (number !== name) return number.length <= letters ? number : "";
  return letters < 3 ? "" : `${name.slice(0, letters - 1)}…`;
}

function rankName(lane) {
  if (lane.rank === null) return "rank unknown";
  return `rank ${lane.rank}${lane.where ? ` (${lane.where})` : ""}`;
}

function tickStep(span, most) {
  const least = span / most;
  const power = 10 ** Math.floor(Math.log10(least));
  return Math.max(1, power * [1, 2, 5, 10].find((factor) => factor * power >= least));
}
