// What happened beside samples: gaps in which most was lost, losses, starts and ends of threads and processes, loads of images.

import { EVENT_GAP, EVENT_LOSS } from "./data.js";
import { duration } from "./numbers.js";

/**
 * The events that are gaps: most of the time between their ends was lost.
 * @param {import("./data.js").Data} data
 */
export function gapsOf({ events }) {
  const gaps = [];
  if (events) for (let at = 0; at < events.time.length; at++) if (events.kind[at] === EVENT_GAP) gaps.push(at);
  return gaps;
}

/**
 * What happened near a time, in words: events within `nearNs`, and the losses that it lies in. With a thread, its own
 * events and those of no thread.
 * @param {import("./data.js").Data} data
 * @param {number} timeNs
 * @param {number} nearNs
 * @param {number | null} thread
 */
export function eventsNear({ events, strings }, timeNs, nearNs, thread) {
  /** @type {string[]} */
  const words = [];
  if (!events) return words;
  for (let at = 0; at < events.time.length; at++) {
    const [from, to] = [events.time[at] - nearNs, events.time[at] + events.duration[at] + nearNs];
    if (events.kind[at] === EVENT_LOSS || timeNs < from || timeNs > to) continue;
    if (thread !== null && events.thread[at] >= 0 && events.thread[at] !== thread) continue;
    words.push(`${duration(events.time[at])} ${strings[events.text[at]]}`);
  }
  return words;
}
