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

// The node from `place` on that `next` replaces: one of the same name and class, else `place` itself if it has that name.
function alike(place, next) {
  const fits = (node) => node.nodeName === next.nodeName && !(node.dataset && node.dataset.key);
  if (next.nodeType === Node.ELEMENT_NODE) {
    for (let node = place; node; node = node.nextSibling) {
      if (fits(node) && node.getAttribute("class") === next.getAttribute("class")) return node;
    }
  }
  return place && fits(place) ? place : null;
}

// Turns `old` into `fresh`, and keeps equal elements, so that focus, open details and selections stay.
function patch(old, fresh) {
  if (old.matches(".cursor")) return;
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  if (old.matches("time.age, input, select, textarea")) return;
  const byKey = new Map([...old.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = next.dataset && next.dataset.key;
    const found = key ? byKey.get(key) : alike(place, next);
    if (!found || found.nodeName !== next.nodeName) {
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

// The values of a chart under the pointer, or step by step by the arrow keys: the server has drawn the lines.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");
document.body.append(tip);
let chosen = -1;

function showValues(svg, index) {
  const { since, width, lines } = JSON.parse(svg.dataset.chart);
  const count = lines[0].values.length;
  chosen = Math.max(0, Math.min(count - 1, index));
  const box = svg.getBoundingClientRect();
  const view = svg.viewBox.baseVal;
  const x = (chosen + 0.5) / count;
  svg.querySelector(".cursor").setAttribute("d", `M${x * view.width} 0V${view.height}`);
  const time = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
  const value = (number) => (number === null ? "not known" : number.toLocaleString("en", { maximumFractionDigits: 1 }));
  const values = lines.map((line) => `${line.label}: ${value(line.values[chosen])}`);
  tip.textContent = [`${time(since + chosen * width)} UTC`, ...values].join("\n");
  tip.hidden = false;
  const left = box.left + x * box.width + 12;
  tip.style.left = `${Math.max(0, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(0, box.top - tip.offsetHeight - 4)}px`;
}

function hideValues() {
  tip.hidden = true;
  chosen = -1;
  for (const cursor of document.querySelectorAll(".cursor")) cursor.setAttribute("d", "");
}

function chartOf(event) {
  return event.target.closest && event.target.closest("svg[data-chart]");
}

addEventListener("pointermove", (event) => {
  const svg = chartOf(event);
  if (!svg) return hideValues();
  const box = svg.getBoundingClientRect();
  const count = JSON.parse(svg.dataset.chart).lines[0].values.length;
  showValues(svg, Math.floor(((event.clientX - box.left) / box.width) * count));
});
addEventListener("focusout", hideValues);
addEventListener("scroll", hideValues, { passive: true });
addEventListener("keydown", (event) => {
  const svg = chartOf(event);
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (svg && step) {
    showValues(svg, chosen < 0 ? Number.MAX_SAFE_INTEGER : chosen + step);
    event.preventDefault();
  }
  if (event.key === "/" && !event.target.closest("input, select, textarea") && !event.ctrlKey && !event.metaKey) {
    const find = document.getElementById("find");
    if (find) {
      find.focus();
      event.preventDefault();
    }
  }
});

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
