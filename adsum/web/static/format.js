// Numbers and times as people read them. null and undefined mean not known.

export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined;

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN;
}

export function percent(share, digits = 0) {
  return known(share) ? `${(share * 100).toFixed(digits)}%` : UNKNOWN;
}

export function number(value, digits = 2) {
  return known(value) ? value.toFixed(digits) : UNKNOWN;
}

// Seconds.
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 0.00005) return "0 ms";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function bytes(size) {
  if (!known(size)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; size >= 1023.5 && at < units.length - 1; at += 1) size /= 1024;
  return `${at && size < 99.5 ? size.toFixed(1) : Math.round(size)} ${units[at]}`;
}

// Seconds since the epoch, as the reader's clock shows them.
export function clock(seconds) {
  return known(seconds) ? new Date(seconds * 1000).toLocaleTimeString("en-GB") : UNKNOWN;
}
