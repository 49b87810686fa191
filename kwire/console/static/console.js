// The live tail: new messages, newest first. All contents are inserted as text.
"use strict";

const tail = document.querySelector("[data-events]");

if (tail) {
  const MOST_ROWS = 200;
  const state = document.getElementById("state");
  const count = document.getElementById("count");
  const pause = document.getElementById("pause");
  let source = null;
  let seen = 0;
  let skipped = 0;

  const cell = (name, text, className) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  const bytes = (shown) => {
    const made = cell("td", "");
    made.setAttribute("role", "cell");
    if (shown.kind === "null" || shown.kind === "empty") {
      made.append(cell("span", shown.kind, "none"));
      return made;
    }
    if (shown.kind === "binary") made.append(cell("span", `${shown.size} B binary`, "tag"), " ");
    made.append(cell("bdi", shown.text, "bytes"));
    if (shown.truncated) made.append(cell("span", ` … ${shown.size} B in total`, "none"));
    return made;
  };

  const show = (row) => {
    const made = cell("tr", "");
    made.setAttribute("role", "row");
    const link = cell("a", row.offset.toLocaleString("en"));
    link.href = `${tail.dataset.base}/${row.partition}/${row.offset}`;
    const place = cell("th", "", "n");
    place.scope = "row";
    place.setAttribute("role", "rowheader");
    place.append(link);
    const key = bytes(row.key);
    key.className = "key";
    key.dataset.name = "key";
    const value = bytes(row.value);
    value.className = "value";
    const partition = cell("td", row.partition, "n");
    const time = cell("td", row.time, "time");
    for (const one of [partition, time]) one.setAttribute("role", "cell");
    made.append(partition, place, time, key, value);
    tail.prepend(made);
  };

  const follow = () => {
    source = new EventSource(tail.dataset.events);
    source.onopen = () => { state.textContent = "Live."; };
    source.onerror = () => {
      state.textContent = source.readyState === EventSource.CLOSED
        ? "The console does not respond, or has too many live tails. Reload the page."
        : "Connection lost. Reconnecting.";
    };
    source.addEventListener("broken", (event) => { state.textContent = JSON.parse(event.data); });
    source.onmessage = (event) => {
      const data = JSON.parse(event.data);
      data.rows.forEach(show);
      while (tail.rows.length > MOST_ROWS) tail.lastElementChild.remove();
      seen += data.rows.length;
      skipped += data.skipped;
      count.textContent = `${seen.toLocaleString("en")} shown` +
        (skipped ? `, ${skipped.toLocaleString("en")} skipped, because too many arrive` : "");
    };
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    if (source) {
      source.close();
      source = null;
      state.textContent = "Paused.";
    } else {
      follow();
    }
    pause.textContent = source ? "Pause" : "Resume";
  });
  follow();
}
