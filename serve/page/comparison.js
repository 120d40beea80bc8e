// The run without drafter beside the one with it: the passes of both, and a difference that must be empty.

import { element } from "./tokens.js";
import { number, say } from "./words.js";

export function showComparison(place, { segments, figures, drafters, plain }) {
  const ours = { name: say("compareWith", { drafter: drafters.join(" + ") }), figures, segments };
  const theirs = { name: say("compareWithout"), ...plain };
  const most = Math.max(countPasses(ours), countPasses(theirs), 1);
  const parts = difference(texts(segments), texts(plain.segments));
  place.replaceChildren(verdict(parts, segments), row(ours, most), row(theirs, most));
  if (parts) place.append(differing(parts));
}

const texts = (segments) => segments.flatMap((segment) => segment.tokens.map((token) => token.text));
const countPasses = ({ figures, segments }) =>
  figures?.passes ?? segments.reduce((sum, segment) => sum + segment.passes.length, 0);

// What stands between the common beginning and the common end of two lists; null where they are the same.
export function difference(ours, theirs) {
  const least = Math.min(ours.length, theirs.length);
  let before = 0;
  while (before < least && ours[before] === theirs[before]) before++;
  if (before === ours.length && before === theirs.length) return null;
  let after = 0;
  while (after < least - before && ours.at(-1 - after) === theirs.at(-1 - after)) after++;
  return { ours: ours.slice(before, ours.length - after), theirs: theirs.slice(before, theirs.length - after) };
}

function verdict(parts, segments) {
  if (!parts) return element("p", "same", `✓ ${say("same", { tokens: number(texts(segments).length) })}`);
  return element("p", "error", say("different", { tokens: number(Math.max(parts.ours.length, parts.theirs.length)) }));
}

function row(run, most) {
  const made = element("div", "compare-row");
  const passes = number(countPasses(run));
  const bar = element("div", "bar-of");
  bar.style.setProperty("--share", countPasses(run) / most);
  const seconds = run.figures && number(run.figures.decode_s, 2);
  const note = seconds ? say("compareRow", { passes, seconds }) : say("compareRowLive", { passes });
  made.append(element("span", "", run.name), bar, element("small", "", note));
  return made;
}

function differing({ ours, theirs }) {
  const made = element("p", "difference");
  made.append(element("del", "", theirs.join("")), element("ins", "", ours.join("")));
  return made;
}
