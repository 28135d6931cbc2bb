// Keeps a page up to date by the stream of its changes. Without this script a page still works, after a reload.
"use strict";

const live = document.getElementById("live");
const pulse = document.getElementById("pulse");
const lost = document.getElementById("lost");
// The server's clock minus ours, in milliseconds: ages are right even if our clock is not.
const clockOffset = document.body.dataset.now ? Date.parse(document.body.dataset.now) - Date.now() : 0;

function formatAge(seconds) {
  const parts = [];
  let left = Math.max(0, Math.floor(seconds));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (left >= length || (unit === "s" && !parts.length)) {
      parts.push(`${Math.floor(left / length)} ${unit}`);
      left %= length;
    }
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

function updateAges() {
  for (const element of document.querySelectorAll("time.age")) {
    const text = formatAge((Date.now() + clockOffset - Date.parse(element.dateTime)) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

// Turns `old` into `fresh`, and keeps equal elements, so that focus, open details and selections stay.
function patch(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  if (old.matches("time.age, input, select, textarea")) return;
  const byKey = new Map([...old.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = next.dataset && next.dataset.key;
    let found = key ? byKey.get(key) : place;
    if (!found || found.nodeName !== next.nodeName || (!key && found.dataset && found.dataset.key)) {
      old.insertBefore(next, place);
      continue;
    }
    if (found !== place) old.insertBefore(found, place);
    else place = place.nextSibling;
    if (key) byKey.delete(key);
    if (found.nodeType === Node.ELEMENT_NODE) patch(found, next);
    else if (found.data !== next.data) found.data = next.data;
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

// True while the viewer fills in a form, or is about to press a button: then the page must not move.
function isBusy() {
  return live.querySelector("details.acts-more[open], details.message[open] .acts, form :focus, form:hover") !== null;
}

let stream = null;

function listen() {
  if (stream || document.hidden) return;
  stream = new EventSource(location.href);
  stream.onopen = () => { lost.hidden = true; };
  stream.onmessage = (event) => {
    lost.hidden = true;
    pulse.textContent = isBusy() ? "Updates are paused while a form is open." : "Updated automatically.";
    if (isBusy()) return;
    const fresh = new DOMParser().parseFromString(`<main>${event.data}</main>`, "text/html").querySelector("main");
    for (const { name, value } of [...live.attributes]) fresh.setAttribute(name, value);
    patch(live, fresh);
    updateAges();
  };
  stream.onerror = () => {
    lost.hidden = false;
    pulse.textContent = "";
    if (stream.readyState === EventSource.CLOSED) {  // the server has refused the stream: signed out, or restarted
      stop();
      setTimeout(listen, 5000);
    }
  };
}

function stop() {
  if (stream) stream.close();
  stream = null;
}

if (live) {
  updateAges();
  setInterval(updateAges, 1000);
  listen();
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", listen);
}

// The printed address has the token after #, which browsers never send.
const token = document.getElementById("token");
if (token && location.hash.length > 1) {
  token.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  document.getElementById("login").requestSubmit();
}
