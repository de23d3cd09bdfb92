"use strict";
// The page's state, its words and its controls; splats.js draws.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const numbers = (text, Kind) => new Kind(bytes(text).buffer);
  const { count, groups, attention } = data;
  const nearest = numbers(groups.nearest, Uint32Array);
  const members = numbers(groups.members, Uint32Array);
  const centerPoints = numbers(groups.points, Uint32Array);
  const steps = numbers(data.points, Uint16Array);
  const colormap = bytes(data.colormap);

  // Rows of numbers that were rounded to 256 levels each.
  const rows = (packed) => {
    if (!packed) return null;
    const levels = bytes(packed.levels), n = packed.columns;
    const low = numbers(packed.low, Float32Array), high = numbers(packed.high, Float32Array);
    return (row) => Array.from({ length: n }, (_, i) =>
      low[row] + (levels[row * n + i] / 255) * (high[row] - low[row]));
  };
  const byHead = rows(attention?.byHead), pairs = rows(attention?.pairs);
  const rollout = rows(attention?.rollout), rolloutPairs = rows(attention?.rolloutPairs);
  const channels = rows(data.tokens);

  // ---- state -------------------------------------------------------------------------------------------------
  const look = { ...data.look, source: data.look.group ? "group" : "class", step: groups.count, size: 1, up: data.up };
  look.head ||= 0; // 0: the mean

  // ---- geometry ----------------------------------------------------------------------------------------------
  const coordinate = (point, axis) =>
    data.low[axis] + (steps[3 * point + axis] / 65535) * (data.high[axis] - data.low[axis]);
  const middle = data.low.map((low, axis) => (low + data.high[axis]) / 2);
  function place() {
    let radius = 0;
    for (let i = 0; i < count; i++) {
      const [x, y, z] = middle.map((m, axis) => coordinate(i, axis) - m);
      xyz.set(look.up === "z" ? [x, z, -y] : [x, y, z], 3 * i);
      radius = Math.max(radius, Math.hypot(x, y, z));
    }
    if (radius > 0) for (let i = 0; i < xyz.length; i++) xyz[i] /= radius;
  }

  // ---- colours -----------------------------------------------------------------------------------------------
  const percent = (share) => `${(100 * share).toPrecision(3)}%`;
  const plain = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4)));
  const mean = (lists) => lists[0].map((_, i) => lists.reduce((sum, list) => sum + list[i], 0) / lists.length);
  const layerRow = (head) => byHead((look.layer - 1) * attention.heads + head - 1);
  const isGroupAsking = () => look.source === "group" && look.group;
  const asking = () => (isGroupAsking() ? `group ${look.group}` : attention.source);

  function attentionValues() {
    if (isGroupAsking()) return pairs((look.layer - 1) * groups.count + look.group - 1);
    if (look.head) return layerRow(look.head);
    return mean(Array.from({ length: attention.heads }, (_, h) => layerRow(h + 1)));
  }
  const headText = () => (isGroupAsking() || !look.head ? "mean of heads" : `head ${look.head}`);

  // {label, perPoint | perGroup values, text of a value} or {label, rgb(point)}
  const COLORINGS = {
    height: () => {
      const axis = "xyz".indexOf(look.up);
      return { label: `Height (${look.up})`, point: (i) => coordinate(i, axis), text: plain };
    },
    normals: () => {
      const normals = numbers(data.normals, Int8Array);
      return { label: "Normals: x red, y green, z blue", rgb: (i) => [0, 1, 2].map((a) => 128 + normals[3 * i + a]) };
    },
    colors: () => {
      const own = bytes(data.colors);
      return { label: "The file's colours", rgb: (i) => own.subarray(3 * i, 3 * i + 3) };
    },
    groups: () => {
      const palette = data.palette.map(hex);
      return { label: "Group of the nearest centre", rgb: (i) => palette[groups.colors[nearest[i]]] };
    },
    order: () => ({ label: "Order in which groups were chosen", text: String,
      group: Array.from({ length: groups.count }, (_, g) => g + 1) }),
    attention: () => ({ label: `Attention of ${asking()}, layer ${look.layer}, ${headText()}`,
      group: attentionValues(), text: percent }),
    rollout: () => ({ label: `Attention rollout from ${asking()}`, text: percent,
      group: isGroupAsking() ? rolloutPairs(look.group - 1) : rollout(0) }),
    channel: () => ({ label: `Channel ${look.channel} of the tokens`, group: channels(look.channel - 1), text: plain }),
  };

  function paint() {
    const { label, point, group, text, rgb: own } = COLORINGS[look.color]();
    $("legend-label").textContent = label;
    $("legend-bar").hidden = Boolean(own);
    const faint = hex(css("--faint"));
    const chosen = inGroups(look.step);
    let low = Infinity, high = -Infinity, value = null;
    if (!own) {
      value = group ? (i) => group[nearest[i]] : point;
      const all = group || Array.from({ length: count }, (_, i) => point(i));
      for (const v of all) { low = Math.min(low, v); high = Math.max(high, v); }
      $("legend-low").textContent = text(low);
      $("legend-high").textContent = text(high);
    }
    for (let i = 0; i < count; i++) {
      if (chosen && !chosen[i]) rgb.set(faint, 3 * i);
      else if (own) rgb.set(own(i), 3 * i);
      else {
        const level = high > low ? Math.round(((value(i) - low) / (high - low)) * 255) : 128;
        rgb.set(colormap.subarray(3 * level, 3 * level + 3), 3 * i);
      }
    }
    invalidate();
  }

  // Which points are members of the first groups; null: all groups are chosen, nothing is faint.
  function inGroups(step) {
    if (step >= groups.count) return null;
    const chosen = new Uint8Array(count);
    for (let i = 0; i < step * groups.size; i++) chosen[members[i]] = 1;
    return chosen;
  }

  // ---- drawing -----------------------------------------------------------------------------------------------
  const canvas = $("canvas");
  const pointRadius = () => look.size * 0.67 * Math.max(64, count) ** -0.43;
  const showsCenters = () => look.step < groups.count || look.color === "groups" || look.color === "order";
  const splats = makeSplats(canvas, count, {
    radius: pointRadius,
    balls: () => (showsCenters() ? centerPoints.subarray(0, look.step) : []),
    overlay: () => { if (look.group) drawGroup(look.group - 1); describeView(); },
    clicked: (point) => pick(point < 0 ? 0 : nearest[point] + 1),
  });
  const { xyz, rgb, view, context, at, scaleAt, ratio, invalidate, turn, zoom, pan, reset } = splats;

  function ring(point, radius, thick, color) {
    context.beginPath();
    context.arc(...at(point), radius, 0, 2 * Math.PI);
    context.lineWidth = thick;
    context.strokeStyle = color;
    context.stroke();
  }

  // The picked group: rings on its points, lines to the groups it attends to most.
  function drawGroup(group) {
    const px = ratio(), accent = css("--accent"), ground = css("--ground"), center = centerPoints[group];
    for (let k = 0; k < groups.size; k++) {
      const point = members[group * groups.size + k];
      const radius = Math.max(3 * px, pointRadius() * scaleAt(point) + px);
      ring(point, radius, 3.5 * px, ground);
      ring(point, radius, 1.7 * px, accent);
    }
    const attended = attention ? mostAttended(group, 5) : [];
    for (const [other, share] of attended) {
      for (const [color, extra] of [[ground, 2.5], [accent, 0]]) {
        context.beginPath();
        context.moveTo(...at(center));
        context.lineTo(...at(centerPoints[other]));
        context.lineWidth = (1 + 4 * (share / attended[0][1]) ** 2 + extra) * px;
        context.strokeStyle = color;
        context.stroke();
      }
    }
    ring(center, 9 * px, 5 * px, ground);
    ring(center, 9 * px, 3 * px, accent);
    context.font = `600 ${13 * px}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.lineJoin = "round";
    for (const other of [...attended.map(([g]) => g), group]) {
      const [x, y] = at(centerPoints[other]);
      context.lineWidth = 4 * px;
      context.strokeStyle = ground;
      context.strokeText(other + 1, x, y - 13 * px);
      context.fillStyle = css("--ink");
      context.fillText(other + 1, x, y - 13 * px);
    }
  }

  function mostAttended(group, top) {
    const row = pairs((look.layer - 1) * groups.count + group);
    return row.map((share, g) => [g, share]).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, top);
  }

  // ---- words -------------------------------------------------------------------------------------------------
  const degrees = (angle) => Math.round((angle * 180) / Math.PI);
  function describeView() {
    const turned = ((degrees(view.yaw) % 360) + 360) % 360;
    $("camera").textContent = `turned ${turned}°, tilted ${degrees(view.pitch)}°, zoom ${view.zoom.toFixed(2)}`;
  }
  const size = data.high.map((high, axis) => plain(high - data.low[axis])).join(" × ");
  function describeCloud() {
    $("name").textContent = data.name;
    const drawn = count < data.total ? `, ${count.toLocaleString("en")} of them drawn` : "";
    const seen = data.model ? ` as the model sees them; ${data.model}` : "";
    $("facts").textContent = `${data.total.toLocaleString("en")} points${drawn}${seen}. ` +
      `Extent ${size}. ${groups.count} groups of ${groups.size}.`;
    canvas.setAttribute("aria-label", `Point cloud ${data.name}`);
  }
  const bar = (item, share) => item.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
  function describeClasses() {
    if (!data.classes) return;
    $("classes-section").hidden = false;
    for (const [name, probability] of data.classes) {
      const item = add($("classes"), "li");
      bar(item, probability);
      add(item, "span", name);
      add(item, "span", `${(100 * probability).toFixed(1)}%`);
    }
  }
  function describeAttention() {
    if (!attention) return;
    $("layer-text").textContent = `${look.layer} of ${attention.layers}`;
    const values = attentionValues();
    const best = values.map((v, g) => [v, g + 1]).sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, 3);
    const all = values.reduce((sum, v) => sum + v, 0);
    $("attention-text").textContent = `Layer ${look.layer}, ${headText()}: ${asking()} attends most to ` +
      best.map(([v, g]) => `group ${g} (${percent(v)})`).join(", ") +
      `; all groups together ${percent(all)}, evenly ${percent(all / groups.count)} each.`;
  }
  function describeStep() {
    $("step").value = look.step;
    $("step").setAttribute("aria-valuetext", `${look.step} of ${groups.count}`);
    $("step-count").textContent = `${look.step} of ${groups.count}`;
    const chosen = inGroups(look.step) || inAll();
    const covered = chosen.reduce((sum, v) => sum + v, 0) / count;
    const point = groups.centers[look.step - 1].map(plain).join(", ");
    const far = look.step > 1 ? `, ${plain(groups.spacing[look.step - 1])} from the nearest centre before it` : "";
    $("step-text").textContent = `Centre ${look.step} is at (${point})${far}. ` +
      `${Math.round(100 * covered)}% of the points drawn are in a group.`;
  }
  const everything = new Uint8Array(count);
  for (const point of members) everything[point] = 1;
  const inAll = () => everything;
  function describeGroup() {
    $("group").value = look.group || 0;
    $("group-more").hidden = !look.group;
    if (!look.group) {
      $("caption").textContent = "";
      $("group-text").textContent = "No group is picked. Click a point, or choose one from the list.";
      return;
    }
    const group = look.group - 1, own = groups.centers[group];
    const distance = (g) => Math.hypot(...groups.centers[g].map((v, axis) => v - own[axis]));
    const reach = Math.max(...Array.from({ length: groups.size }, (_, k) =>
      Math.hypot(...own.map((v, axis) => coordinate(members[group * groups.size + k], axis) - v))));
    const distinct = new Set(members.subarray(group * groups.size, (group + 1) * groups.size)).size;
    $("group-text").textContent = `Group ${look.group} of ${groups.count}: ${distinct} points within ${plain(reach)} ` +
      `of its centre at (${own.map(plain).join(", ")}).${valueText(group)}`;
    const others = [...Array(groups.count).keys()].filter((g) => g !== group)
      .sort((a, b) => distance(a) - distance(b) || a - b).slice(0, 5);
    $("neighbours").replaceChildren();
    for (const g of others) link($("neighbours"), g, `${g + 1}`);
    $("caption").textContent = `Group ${look.group}`;
    if (!attention) return;
    $("attends-block").hidden = false;
    $("attends-title").textContent = `Attends most to, in layer ${look.layer} (mean of heads)`;
    $("attends").replaceChildren();
    const attended = mostAttended(group, 5);
    $("caption").textContent += ` attends most to ${attended.map(([g]) => g + 1).join(", ")}`;
    for (const [g, share] of attended) {
      const item = add($("attends"), "li");
      bar(item, share / attended[0][1]);
      link(item, g, g === group ? `Group ${g + 1} (itself)` : `Group ${g + 1}`);
      add(item, "span", percent(share));
    }
  }
  function valueText(group) {
    const { label, group: values, text } = COLORINGS[look.color]();
    return values ? ` ${label}: ${text(values[group])}.` : "";
  }
  function add(parent, tag, text = "") {
    const node = document.createElement(tag);
    node.textContent = text;
    parent.append(node);
    return node;
  }
  function link(parent, group, text) {
    const button = add(parent, "button", text);
    button.type = "button";
    button.setAttribute("aria-label", `Pick group ${group + 1}`);
    button.addEventListener("click", () => { pick(group + 1); $("group").focus(); });
  }

  // ---- actions -----------------------------------------------------------------------------------------------
  function refresh() {
    describeAttention();
    describeGroup();
    $("channel-row").hidden = look.color !== "channel";
    $("head").disabled = Boolean(isGroupAsking());
    paint();
  }
  function pick(group) {
    look.group = group || null;
    refresh();
  }
  function step(to) {
    look.step = Math.max(1, Math.min(groups.count, to));
    describeStep();
    paint();
  }
  let playing = 0;
  function play(on) {
    clearInterval(playing);
    playing = 0;
    if (on) {
      if (look.step >= groups.count) step(1);
      playing = setInterval(() => (look.step < groups.count ? step(look.step + 1) : play(false)), 250);
    }
    $("play").setAttribute("aria-pressed", String(on));
    $("play").textContent = on ? "Pause" : "Play";
    // A screen reader would be told four times a second.
    $("step-text").setAttribute("aria-live", on ? "off" : "polite");
  }

  const ANGLE = Math.PI / 24;
  const next = (by) => pick(((((look.group || (by > 0 ? 0 : 1)) - 1 + by) % groups.count) + groups.count) % groups.count + 1);
  const KEYS = {
    ArrowLeft: () => turn(ANGLE, 0), ArrowRight: () => turn(-ANGLE, 0),
    ArrowUp: () => turn(0, -ANGLE), ArrowDown: () => turn(0, ANGLE),
    "Shift+ArrowLeft": () => pan(-0.05, 0), "Shift+ArrowRight": () => pan(0.05, 0),
    "Shift+ArrowUp": () => pan(0, -0.05), "Shift+ArrowDown": () => pan(0, 0.05),
    "+": () => zoom(1.15), "=": () => zoom(1.15), "-": () => zoom(1 / 1.15), 0: reset, Home: reset,
    n: () => next(1), p: () => next(-1), Escape: () => pick(0),
    ".": () => step(look.step + 1), ",": () => step(look.step - 1), " ": () => play(!playing),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isArrow = event.key.startsWith("Arrow");
    const key = isArrow && event.shiftKey ? `Shift+${event.key}` : event.key;
    const action = KEYS[key] || KEYS[key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });

  // ---- controls ----------------------------------------------------------------------------------------------
  const option = (list, value, text) => { add(list, "option", text).value = value; };
  const NAMES = { height: "Height", normals: "Normals", colors: "The file's colours", groups: "Point groups",
    order: "Order of the groups", attention: "Attention", rollout: "Attention rollout", channel: "Channel of the tokens" };
  const on = (id, type, action) => $(id).addEventListener(type, action);

  for (const name of data.colorings) option($("color"), name, NAMES[name]);
  option($("group"), 0, "none");
  for (let g = 1; g <= groups.count; g++) option($("group"), g, `Group ${g}`);
  $("color").value = look.color;
  $("up").value = look.up;
  $("step").max = groups.count;
  if (attention) {
    $("attention-section").hidden = false;
    $("source").options[0].textContent = attention.source;
    $("source").value = look.source;
    $("layer").max = attention.layers;
    $("layer").value = look.layer;
    option($("head"), 0, `mean of ${attention.heads} heads`);
    for (let h = 1; h <= attention.heads; h++) option($("head"), h, `head ${h}`);
    $("head").value = look.head;
    $("channel").max = numbers(data.tokens.low, Float32Array).length;
    $("channel").value = look.channel;
  }
  on("color", "change", () => { look.color = $("color").value; refresh(); });
  on("channel", "change", () => {
    const most = Number($("channel").max);
    look.channel = Math.max(1, Math.min(most, Math.round(Number($("channel").value)) || 1));
    $("channel").value = look.channel;
    refresh();
  });
  on("up", "change", () => { look.up = $("up").value; place(); refresh(); });
  on("size", "input", () => { look.size = Number($("size").value); invalidate(); });
  // Whoever moves an attention control wants to see attention.
  const showAttention = () => {
    if (look.color !== "attention" && look.color !== "rollout") $("color").value = look.color = "attention";
    refresh();
  };
  on("source", "change", () => { look.source = $("source").value; showAttention(); });
  on("layer", "input", () => { look.layer = Number($("layer").value); showLayer(); });
  on("head", "change", () => { look.head = Number($("head").value); showLayer(); });
  const showLayer = () => { $("color").value = look.color = "attention"; refresh(); };
  on("group", "change", () => pick(Number($("group").value)));
  on("step", "input", () => { play(false); step(Number($("step").value)); });
  on("back", "click", () => { play(false); step(look.step - 1); });
  on("forward", "click", () => { play(false); step(look.step + 1); });
  on("play", "click", () => play(!playing));
  on("left", "click", () => turn(ANGLE, 0));
  on("right", "click", () => turn(-ANGLE, 0));
  on("nearer", "click", () => zoom(1.25));
  on("farther", "click", () => zoom(1 / 1.25));
  on("reset", "click", reset);

  const map = $("legend-map").getContext("2d"), strip = map.createImageData(256, 1);
  for (let i = 0; i < 256; i++) strip.data.set([...colormap.subarray(3 * i, 3 * i + 3), 255], 4 * i);
  map.putImageData(strip, 0, 0);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  describeCloud();
  describeClasses();
  place();
  describeStep();
  refresh();
})();
