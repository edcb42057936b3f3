"use strict";

// Columns: heading, value of a row, and whether it is a number.
const sum = (a, b, key) => a[key] + b[key];
const end = (host, port) => port ? (host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`) : host;
const TABLES = {
  talkers: [
    ["host", r => r.host],
    ["sent frames", r => r.sent.frames, true], ["sent bytes", r => r.sent.bytes, true],
    ["received frames", r => r.received.frames, true], ["received bytes", r => r.received.bytes, true],
    ["bytes", r => sum(r.sent, r.received, "bytes"), true],
  ],
  conversations: [
    ["protocol", r => r.protocol], ["a", r => end(r.a, r.a_port)], ["b", r => end(r.b, r.b_port)],
    ["name", r => r.name || ""], ["process", r => r.pid || ""],
    ["frames", r => sum(r.a_to_b, r.b_to_a, "frames"), true],
    ["a to b", r => r.a_to_b.bytes, true], ["b to a", r => r.b_to_a.bytes, true],
    ["bytes", r => sum(r.a_to_b, r.b_to_a, "bytes"), true],
  ],
  protocols: [["protocol", r => r.protocol], ["frames", r => r.frames, true], ["bytes", r => r.bytes, true]],
  ports: [
    ["port", r => r.port, true], ["interface", r => r.interface], ["filter", r => r.filter || "(all)"],
    ["process", r => r.pid, true], ["user", r => r.uid, true], ["takes", r => r.copy ? "no" : "yes"],
    ["delivered", r => r.delivered, true], ["lost", r => r.lost, true],
  ],
  processes: [
    ["process", r => r.pid, true], ["name", r => r.name], ["user", r => r.uid, true],
    ["frames", r => r.frames, true], ["bytes", r => r.bytes, true],
  ],
  "last frames": [
    ["time", r => r.time || ""], ["bytes", r => r.length, true], ["frame", r => r.line],
    ["number", r => r.number, true],
  ],
};
const LIST = "last frames";

const byId = id => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
let news = null;
let tab = "talkers";
// The last frames, and the number of the one that is shown.
let listed = [];
let shown = 0;
// The last column, the greatest first.
let order = {};
// While the mouse is pressed on the table its rows stay, or the click would be of no row.
let pressed = false;

function text(value, isNumber) {
  return isNumber ? number.format(value) : String(value);
}

function drawTable() {
  if (pressed) return;
  const columns = TABLES[tab];
  const { column, down } = order[tab] || { column: columns.length - 1, down: true };
  const wanted = byId("find").value.toLowerCase();
  const all = rowsOf(tab);
  const rows = all.filter(row => !wanted
    || columns.some(([, value]) => String(value(row)).toLowerCase().includes(wanted)));
  const value = columns[column][1];
  rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
  });
  const head = document.createElement("tr");
  columns.forEach(([name, , isNumber], index) => {
    const cell = document.createElement("th");
    cell.textContent = name + (index === column ? (down ? " ▼" : " ▲") : "");
    if (isNumber) cell.className = "number";
    cell.addEventListener("click", () => {
      order[tab] = { column: index, down: index === column ? !down : Boolean(isNumber) };
      drawTable();
    });
    head.append(cell);
  });
  byId("table").tHead.replaceChildren(head);
  // Text only: hosts, names and filters may be anybody's.
  byId("table").tBodies[0].replaceChildren(...rows.map(row => {
    const line = document.createElement("tr");
    for (const [, value, isNumber] of columns) {
      const cell = document.createElement("td");
      cell.textContent = text(value(row), isNumber);
      if (isNumber) cell.className = "number";
      line.append(cell);
    }
    if (tab === LIST) line.addEventListener("click", () => { shown = row.number; drawFrame(); });
    return line;
  }));
  const others = (news.state.others || {})[tab];
  byId("shown").textContent = `${rows.length} of ${all.length} rows`
    + (others && others.frames ? `; others: ${number.format(others.frames)} frames` : "");
}

function rowsOf(name) {
  return name === LIST ? listed : news.state[name] || [];
}

function tabs(state) {
  return Object.keys(TABLES).filter(name => name === LIST || state[name]);
}

async function get(path) {
  try {
    const answer = await fetch(path);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

// The list is asked for while it is shown.
// A view may answer later.
async function drawList(tries = 20) {
  listed = await get("frames.json") || listed;
  if (tab !== LIST) return;
  drawTable();
  if (listed.some(frame => frame.waiting) && tries) setTimeout(() => drawList(tries - 1), 250);
}

// A view may answer later.
async function drawFrame(tries = 20) {
  const number = shown;
  const frame = await get(`frame.json?number=${number}`);
  if (number !== shown) return;
  byId("frame").textContent = frame
    ? [frame.line, ...frame.fields.map(l => "  ".repeat(l.depth) + l.text), "", ...frame.hex].join("\n")
    : `frame ${number} is no longer kept`;
  if (frame && frame.waiting && tries) setTimeout(() => number === shown && drawFrame(tries - 1), 250);
}

function drawTabs() {
  byId("frame").hidden = tab !== LIST;
  byId("tabs").replaceChildren(...tabs(news.state).map(name => {
    const button = document.createElement("button");
    button.textContent = name;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", String(name === tab));
    button.addEventListener("click", () => {
      tab = name;
      drawTabs();
      drawTable();
      if (tab === LIST) drawList();
    });
    return button;
  }));
}

function plot(id, values) {
  const canvas = byId(id);
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const most = Math.max(1, ...values);
  context.clearRect(0, 0, width, height);
  context.strokeStyle = getComputedStyle(canvas).color;
  context.fillStyle = context.strokeStyle;
  context.lineWidth = 2;
  context.beginPath();
  // Live, new points come from the right.
  const step = width / Math.max(1, (news.live ? 300 : values.length) - 1);
  values.forEach((value, index) => {
    const x = width - (values.length - 1 - index) * step;
    const y = height - 4 - (height - 20) * value / most;
    if (index) context.lineTo(x, y); else context.moveTo(x, y);
  });
  context.stroke();
  context.fillText(short.format(most), 4, 12);
}

function show(fresh) {
  const wasTabs = news && tabs(news.state).join();
  news = fresh;
  const { state, rates } = news;
  document.title = `weir ${news.source}`;
  byId("source").textContent = news.source + (news.filter ? `, ${news.filter}` : "");
  const troubles = (state.troubles || []).join(", ");
  byId("totals").textContent = `${number.format(state.frames)} frames, ${number.format(state.bytes)} bytes, `
    + `${number.format(state.lost)} lost, ${state.seconds.toFixed(1)} s` + (news.live || troubles ? "" : " (the end of the file)");
  byId("troubles").textContent = troubles;
  const last = rates.length ? rates[rates.length - 1] : [0, 0];
  byId("rate-frames").textContent = news.live ? short.format(last[0]) : "";
  byId("rate-bits").textContent = news.live ? short.format(last[1] * 8) : "";
  plot("plot-frames", rates.map(rate => rate[0]));
  plot("plot-bits", rates.map(rate => rate[1] * 8));
  if (wasTabs !== tabs(state).join()) drawTabs();
  drawTable();
  if (tab === LIST) drawList();
}

// The left button: the menu of another one may take the release.
byId("table").addEventListener("pointerdown", event => { pressed = event.button === 0; });
// After the click's own listeners.
const released = () => pressed && setTimeout(() => { pressed = false; drawTable(); });
for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, released);
byId("find").addEventListener("input", () => news && drawTable());
// At once, without waiting for the stream.
show(JSON.parse(byId("first").textContent));
const events = new EventSource("events");
events.onmessage = event => {
  byId("totals").classList.remove("ended");
  show(JSON.parse(event.data));
};
events.onerror = () => byId("totals").classList.add("ended");
