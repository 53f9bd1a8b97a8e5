// Follows the page's live data, and says in the frame whether it does.

import { byId, setAttribute, setText } from "./dom.js";

const LOST_AFTER = 4000;
const TRY_AGAIN = 3000;

// topics: by event name, the function that gets its state. A page that nobody sees follows nothing.
export function follow(topics) {
  let stream = null;
  let lost = null;
  let again = null;

  function open() {
    if (stream || document.hidden) return;
    stream = new EventSource("updates");
    stream.onopen = () => {
      clearTimeout(lost);
      lost = null;
      show("live", "Live");
    };
    stream.onerror = () => {
      lost ??= setTimeout(() => show("lost", "Connection lost, trying again"), LOST_AFTER);
      if (stream.readyState === EventSource.CLOSED) {
        close();
        again = setTimeout(open, TRY_AGAIN);
      }
    };
    for (const [name, update] of Object.entries(topics)) {
      stream.addEventListener(name, (event) => update(JSON.parse(event.data)));
    }
  }

  function close() {
    clearTimeout(again);
    stream?.close();
    stream = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      clearTimeout(lost);
      lost = null;
      show("paused", "Paused");
    } else open();
  });
  open();
}

function show(state, words) {
  const node = byId("connection");
  setAttribute(node, "data-state", state);
  setText(node, words);
  document.body.classList.toggle("stale", state === "lost");
}
