// The pages work without this script; with it they change by themselves.
"use strict";

const live = document.getElementById("live");
const pulse = document.getElementById("pulse");
const lost = document.getElementById("lost");
// what the server's clock is ahead of ours, so that ages are right on a machine whose clock is not
const ahead = document.body.dataset.now ? Date.parse(document.body.dataset.now) - Date.now() : 0;

function said(seconds) {
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

function tellAges() {
  for (const one of document.querySelectorAll("time.age")) {
    const text = said((Date.now() + ahead - Date.parse(one.dateTime)) / 1000);
    if (one.textContent !== text) one.textContent = text;
  }
}

// Makes `old` as `fresh` is, and leaves alone what is the same: the focus, what is unfolded, what is selected.
function renew(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  if (old.matches("time.age, input, select, textarea")) return;
  const kept = new Map([...old.children].filter((one) => one.dataset.key).map((one) => [one.dataset.key, one]));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = next.dataset && next.dataset.key;
    let found = key ? kept.get(key) : place;
    if (!found || found.nodeName !== next.nodeName || (!key && found.dataset && found.dataset.key)) {
      old.insertBefore(next, place);
      continue;
    }
    if (found !== place) old.insertBefore(found, place);
    else place = place.nextSibling;
    if (key) kept.delete(key);
    if (found.nodeType === Node.ELEMENT_NODE) renew(found, next);
    else if (found.data !== next.data) found.data = next.data;
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

// Nothing moves away under the hand of somebody who fills in a form or is about to press a button of one.
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
    pulse.textContent = isBusy() ? "Still while you act: close what you have opened to see what is new." : "Live.";
    if (isBusy()) return;
    const fresh = new DOMParser().parseFromString(`<main>${event.data}</main>`, "text/html").querySelector("main");
    for (const { name, value } of [...live.attributes]) fresh.setAttribute(name, value);
    renew(live, fresh);
    tellAges();
  };
  stream.onerror = () => {
    lost.hidden = false;
    pulse.textContent = "";
    if (stream.readyState === EventSource.CLOSED) {  // the server has refused it: signed out, or begun anew
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
  tellAges();
  setInterval(tellAges, 1000);
  listen();
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", listen);
}

// The printed address carries the token behind #, which no browser sends to anybody.
const token = document.getElementById("token");
if (token && location.hash.length > 1) {
  token.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  document.getElementById("login").requestSubmit();
}
