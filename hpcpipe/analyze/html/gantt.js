// The page's Gantt: a canvas that zooms and pans in time. It reads the document of gantt_data.py and nothing else.
"use strict";

function startGantt(root, data) {
  const unpack = (text, type) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new type(bytes.buffer);
  };
  const lanes = data.lanes.map((lane) => ({
    rank: lane.rank,
    stage: lane.stage,
    edges: unpack(lane.edges, Float64Array),
    classes: unpack(lane.classes, Uint8Array),
    steps: unpack(lane.steps, Int32Array),
    microbatches: unpack(lane.microbatches, Int32Array),
    chunks: unpack(lane.chunks, Int16Array),
    peers: unpack(lane.peers, Int32Array),
    flags: unpack(lane.flags, Uint8Array),
    starts: unpack(lane.beside.starts, Float64Array),
    ends: unpack(lane.beside.ends, Float64Array),
    kinds: unpack(lane.beside.kinds, Uint8Array),
    buckets: unpack(lane.beside.buckets, Int32Array),
  }));
  const messages = {
    from: unpack(data.messages.from, Uint16Array),
    to: unpack(data.messages.to, Uint16Array),
    sent: unpack(data.messages.sent, Float64Array),
    seen: unpack(data.messages.seen, Float64Array),
  };
  const looks = data.looks.classes;
  const canvas = root.querySelector("canvas");
  const tip = root.querySelector(".tip");
  const range = root.querySelector(".range");
  const arrows = root.querySelector(".arrows");
  const ctx = canvas.getContext("2d");
  const LEFT = 118, TOP = 22, BOTTOM = 26, MOST_ARROWS = 4000;
  const height = Math.max(7, Math.min(34, Math.floor(760 / lanes.length)));
  const bar = Math.max(5, Math.round(height * 0.8));
  let begin = 0, end = data.wall, width = 800;

  const patterns = {};
  for (const [code, look] of Object.entries(looks)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const t = tile.getContext("2d");
    t.fillStyle = look.color;
    t.fillRect(0, 0, 8, 8);
    t.strokeStyle = look.ink;
    t.beginPath();
    if (look.wait || look.hatch) {
      if ("/x".includes(look.hatch || "?")) { t.moveTo(0, 8); t.lineTo(8, 0); }
      if ("\\x".includes(look.hatch || "?")) { t.moveTo(0, 0); t.lineTo(8, 8); }
      if ("-+".includes(look.hatch || "?")) { t.moveTo(0, 4); t.lineTo(8, 4); }
      if (look.hatch === "+") { t.moveTo(4, 0); t.lineTo(4, 8); }
      if ("o.".includes(look.hatch || "?")) t.arc(4, 4, look.hatch === "o" ? 2 : 0.7, 0, 7);
    }
    t.stroke();
    patterns[code] = look.hatch ? ctx.createPattern(tile, "repeat") : look.color;
  }

  const x = (time) => LEFT + ((time - begin) / (end - begin)) * (width - LEFT - 8);
  const timeAt = (px) => begin + ((px - LEFT) / (width - LEFT - 8)) * (end - begin);
  const y = (row) => TOP + row * height + (height - bar) / 2;
  const firstAfter = (values, time) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  };
  const task = (lane, i) => {
    const letter = looks[lane.classes[i]].task;
    if (!letter) return "";
    return letter + lane.microbatches[i] + (lane.chunks[i] > 0 ? "." + lane.chunks[i] : "");
  };
  const ms = (ns) => {
    const digits = end - begin > 1e8 ? 2 : end - begin > 1e6 ? 3 : 6;
    return (ns / 1e6).toFixed(digits) + " ms";
  };

  function drawLane(row) {
    const lane = lanes[row], top = y(row);
    const least = 0.4 * ((end - begin) / (width - LEFT - 8));
    let skipped = -1;
    for (let i = Math.max(0, firstAfter(lane.edges, begin) - 1); i < lane.classes.length && lane.edges[i] < end; i++) {
      const a = lane.edges[i], b = lane.edges[i + 1];
      if (b - a < least && skipped >= 0 && a - skipped < least) continue; // less than a pixel, drawn already
      skipped = a;
      const look = looks[lane.classes[i]];
      if (!look) continue;
      const from = Math.max(LEFT, x(a)), to = Math.min(width - 8, x(b));
      const wide = Math.max(to - from, 0.5);
      ctx.fillStyle = wide > 5 ? patterns[lane.classes[i]] : look.color;
      ctx.fillRect(from, top, wide, bar);
      if (look.task && wide > 4) {
        ctx.fillStyle = "#fff";
        ctx.fillRect(to - 0.7, top, 0.7, bar);
      }
      if (look.task && wide > 22 && bar >= 9) {
        ctx.fillStyle = look.ink;
        ctx.fillText(task(lane, i).slice(1), (from + to) / 2, top + bar / 2);
      }
    }
    for (let i = 0; i < lane.starts.length; i++) {
      if (lane.ends[i] < begin || lane.starts[i] > end) continue;
      const from = Math.max(LEFT, x(lane.starts[i])), to = Math.min(width - 8, x(lane.ends[i]));
      ctx.fillStyle = data.looks.collectives[lane.kinds[i]].color;
      ctx.fillRect(from, top + bar, Math.max(to - from, 0.5), Math.max(1.5, height - bar - 1));
    }
  }

  function drawAxis(bottom) {
    const about = (end - begin) / Math.max(2, (width - LEFT) / 110);
    const power = 10 ** Math.floor(Math.log10(about));
    const tick = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= about);
    ctx.fillStyle = "#333";
    ctx.textAlign = "center";
    for (let t = Math.ceil(begin / tick) * tick; t <= end; t += tick) {
      ctx.fillRect(x(t), bottom, 1, 4);
      ctx.fillText(String(Number((t / 1e6).toPrecision(12))), x(t), bottom + 13);
    }
    ctx.textAlign = "left";
    ctx.fillText("ms", LEFT - 44, bottom + 13);
    let free = -1;
    data.steps.forEach((step, i) => {
      if (data.edges[i + 1] < begin || data.edges[i] > end) return;
      const at = Math.max(LEFT, x(data.edges[i]));
      if (i && data.edges[i] >= begin) {
        ctx.fillStyle = "#111";
        ctx.fillRect(at, TOP - 4, 1, bottom - TOP + 4);
      }
      if (at < free) return;
      ctx.fillStyle = "#333";
      const name = "step " + step;
      ctx.fillText(name, at + 3, 10);
      free = at + ctx.measureText(name).width + 12;
    });
  }

  function drawArrows() {
    const visible = [];
    for (let i = 0; i < messages.sent.length && visible.length <= MOST_ARROWS; i++) {
      if (messages.seen[i] >= begin && messages.sent[i] <= end) visible.push(i);
    }
    if (visible.length > MOST_ARROWS) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(LEFT, TOP, width - LEFT - 8, lanes.length * height);
    ctx.clip();
    ctx.strokeStyle = "rgba(20,20,20,0.55)";
    ctx.lineWidth = 0.8;
    ctx.beginPath();
    for (const i of visible) {
      ctx.moveTo(x(messages.sent[i]), y(messages.from[i]) + bar / 2);
      ctx.lineTo(x(messages.seen[i]), y(messages.to[i]) + bar / 2);
    }
    ctx.stroke();
    ctx.restore();
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = root.clientWidth;
    const bottom = TOP + lanes.length * height;
    canvas.style.height = bottom + BOTTOM + "px";
    canvas.width = width * ratio;
    canvas.height = (bottom + BOTTOM) * ratio;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = "#fff";
    ctx.fillRect(0, 0, width, bottom + BOTTOM);
    ctx.font = "11px sans-serif";
    ctx.textBaseline = "middle";
    const every = Math.ceil(12 / height);
    const replicated = lanes.some((lane) => lane.rank !== lane.stage);
    lanes.forEach((lane, row) => {
      ctx.textAlign = "center";
      drawLane(row);
      ctx.textAlign = "right";
      ctx.fillStyle = "#222";
      const name = "stage " + lane.stage + (replicated ? " · rank " + lane.rank : "");
      if (row % every === 0) ctx.fillText(name, LEFT - 8, y(row) + bar / 2);
    });
    drawAxis(bottom);
    if (arrows.checked) drawArrows();
    range.textContent = ms(begin) + " to " + ms(end) + " (" + ms(end - begin) + ")";
  }

  function show(from, to) {
    const least = 200;
    const length = Math.min(data.wall, Math.max(least, to - from));
    begin = Math.min(Math.max(0, from), data.wall - length);
    end = begin + length;
    requestAnimationFrame(draw);
  }
  const zoom = (factor, about) => show(about - (about - begin) * factor, about + (end - about) * factor);
  const pan = (share) => show(begin + share * (end - begin), end + share * (end - begin));

  function describe(px, py) {
    const row = Math.floor((py - TOP) / height), time = timeAt(px);
    if (row < 0 || row >= lanes.length || px < LEFT || time > end) return "";
    const lane = lanes[row];
    const place = "stage " + lane.stage + " · rank " + lane.rank;
    if (py - y(row) > bar) {
      for (let i = 0; i < lane.starts.length; i++) {
        if (lane.starts[i] <= time && time < lane.ends[i]) {
          const look = data.looks.collectives[lane.kinds[i]];
          return [place, look.name + " of bucket " + lane.buckets[i], ms(lane.ends[i] - lane.starts[i])].join("\n");
        }
      }
    }
    const i = firstAfter(lane.edges, time) - 1;
    if (i < 0 || i >= lane.classes.length) return "";
    const look = looks[lane.classes[i]], a = lane.edges[i], b = lane.edges[i + 1];
    let what = look.name;
    if (look.task) what += " " + task(lane, i);
    if (look.wait && lane.peers[i] >= 0) {
      const until = (lane.flags[i] & 1 ? "B" : "F") + lane.microbatches[i] + (lane.chunks[i] > 0 ? "." + lane.chunks[i] : "");
      what += " until " + until + " came from rank " + lane.peers[i];
    }
    const step = lane.steps[i] >= 0 ? "step " + lane.steps[i] + " · " : "";
    return [place, what, step + ms(b - a), "from " + ms(a) + " to " + ms(b)].join("\n");
  }

  let dragged = null;
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan(event.deltaX / width);
    } else if (event.ctrlKey || event.shiftKey || document.activeElement === canvas) {
      event.preventDefault();
      zoom(Math.exp((event.deltaY || event.deltaX) * 0.0015), timeAt(event.offsetX));
    }
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    dragged = { from: event.offsetX, begin, end };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const moved = ((dragged.from - event.offsetX) / (width - LEFT - 8)) * (dragged.end - dragged.begin);
      show(dragged.begin + moved, dragged.end + moved);
      return;
    }
    const text = describe(event.offsetX, event.offsetY);
    tip.textContent = text;
    tip.style.display = text ? "block" : "none";
    tip.style.left = Math.min(event.offsetX + 14, width - 260) + "px";
    tip.style.top = event.offsetY + 14 + canvas.offsetTop + "px";
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("dblclick", (event) => zoom(0.35, timeAt(event.offsetX)));
  const middle = () => (begin + end) / 2;
  const acts = {
    all: () => show(0, data.wall), in: () => zoom(0.5, middle()), out: () => zoom(2, middle()),
    left: () => pan(-0.3), right: () => pan(0.3),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Home: "all" };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    acts[keys[event.key]]();
  });
  root.querySelectorAll("button[data-act]").forEach((button) => {
    button.addEventListener("click", acts[button.dataset.act]);
  });
  arrows.addEventListener("change", draw);
  window.addEventListener("resize", draw);
  const opening = data.steps.length > 4 ? data.steps.length >> 1 : 0; // of many steps, first show two in the middle
  show(data.edges[opening], opening ? data.edges[opening + 2] : data.wall);
  draw();
  return { show, describe, x, y: (row) => y(row) + bar / 2, view: () => [begin, end] };
}

const gantt = startGantt(document.querySelector("#gantt"), JSON.parse(document.querySelector("#gantt-data").textContent));
