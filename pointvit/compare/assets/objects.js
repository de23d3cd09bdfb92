"use strict";
// One object seen by both encoders: choosing a patch or a group lights up what it attends to, and the matching place.
(() => {
  const data = JSON.parse(document.getElementById("objects-data").textContent);
  const $ = (id) => document.getElementById(`objects-${id}`);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const words16 = (text) => new Uint16Array(bytes(text).buffer);
  const colormap = bytes(data.colormap);
  const [rows, columns] = data.grid, patches = rows * columns;
  const KINDS = {
    image: { count: patches, one: "patch", many: "patches", name: (p) => `row ${Math.floor(p / columns) + 1}, column ${(p % columns) + 1}` },
    points: { count: data.groups, one: "group", many: "groups", name: (g) => `${g + 1}` },
  };
  const look = { object: 0, layer: data.layers.length - 1, head: 0, show: "attention", image: -1, points: -1, from: null };
  const scene = () => data.objects[look.object];

  // ---- attention ---------------------------------------------------------------------------------------------
  async function inflated(text) {
    const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }
  // Shares that every patch or group gets from the chosen one, or from the class token.
  async function shares(kind) {
    const side = scene()[kind], { count } = KINDS[kind];
    if (look.show === "rollout") {
      const steps = words16(side.rollout);
      return Array.from({ length: count }, (_, i) => (steps[i] / 65535) * side.rolloutMost);
    }
    const packed = side.layers[look.layer];
    packed.ready ||= Promise.all([inflated(packed.levels), inflated(packed.most)])
      .then(([levels, most]) => ({ levels: new Uint8Array(levels), most: new Uint16Array(most) }));
    const { levels, most } = await packed.ready;
    const row = look[kind] < 0 ? 0 : side.asking.indexOf(look[kind]) + 1, all = side.asking.length + 1;
    const heads = look.head ? [look.head - 1] : Array.from({ length: data.heads }, (_, h) => h);
    return Array.from({ length: count }, (_, i) => {
      const sum = heads.reduce((total, h) => {
        const level = levels[(h * all + row) * count + i] / data.levels;
        return total + (most[h * all + row] / 65535) * level * level;
      }, 0);
      return sum / heads.length;
    });
  }
  const best = (values, top) => values.map((v, i) => [i, v]).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, top);
  const percent = (share) => `${(100 * share).toPrecision(2)}%`;

  // ---- the picture -------------------------------------------------------------------------------------------
  const view = $("view"), paper = view.getContext("2d"), picture = new Image();
  const SIDE = 448;
  view.width = SIDE;
  view.height = SIDE;
  let lit = { image: new Array(patches).fill(0), points: new Array(data.groups).fill(0) };
  const color = (level) => colormap.subarray(3 * level, 3 * level + 3);
  const level = (values, i) => {
    const most = Math.max(...values), least = Math.min(...values);
    return most > least ? Math.round((255 * (values[i] - least)) / (most - least)) : 128;
  };
  const cell = (p) => [((p % columns) * SIDE) / columns, (Math.floor(p / columns) * SIDE) / rows, SIDE / columns, SIDE / rows];
  function outline(context, draw, width) {
    for (const [style, extra] of [["#000", 3], ["#fff", 0]]) {
      context.strokeStyle = style;
      context.lineWidth = width + extra;
      context.beginPath();
      draw();
      context.stroke();
    }
  }
  function drawView() {
    paper.clearRect(0, 0, SIDE, SIDE);
    paper.filter = "grayscale(1)"; // colours are those of attention
    paper.drawImage(picture, 0, 0, SIDE, SIDE);
    paper.filter = "none";
    const most = Math.max(...lit.image), least = Math.min(...lit.image), span = most > least ? most - least : 1;
    for (let p = 0; p < patches; p++) {
      const box = cell(p), [r, g, b] = color(Math.round((255 * (lit.image[p] - least)) / span));
      paper.fillStyle = `rgba(${r},${g},${b},${0.25 + (0.5 * (lit.image[p] - least)) / span})`;
      paper.fillRect(...box);
      paper.strokeStyle = "rgba(255,255,255,.16)";
      paper.lineWidth = 1;
      paper.strokeRect(...box);
    }
    for (const [p] of best(lit.image, 3)) {
      const [x, y, w, h] = cell(p);
      outline(paper, () => paper.arc(x + w / 2, y + h / 2, Math.min(w, h) / 4, 0, 2 * Math.PI), 1.5);
    }
    if (look.image >= 0) outline(paper, () => paper.rect(...cell(look.image)), 3);
  }
  picture.addEventListener("load", drawView);

  // ---- the cloud ---------------------------------------------------------------------------------------------
  const cloud = $("cloud"), count = words16(data.objects[0].cloud).length / 3;
  // The wheel and a finger that moves up or down scroll the page; the renderer would take both.
  cloud.parentElement.addEventListener("wheel", (event) => { if (!event.ctrlKey) event.stopPropagation(); }, { capture: true, passive: true });
  let nearest = new Uint16Array(count);
  const radius = () => 0.67 * Math.max(64, count) ** -0.43;
  const splats = makeSplats(cloud, count, {
    radius,
    balls: () => (look.points < 0 ? [] : [scene().centers[look.points]]),
    overlay: drawMarks,
    clicked: (point) => pick("points", point < 0 ? -1 : nearest[point]),
  });
  const { xyz, rgb } = splats;
  // As large as in the picture, whose margin is a tenth; the renderer keeps space for words above and below.
  const fill = () => (0.95 * cloud.clientWidth) / Math.max(80, cloud.clientHeight - 116);
  const front = () => { Object.assign(splats.view, { yaw: 0, pitch: data.pitch, zoom: fill(), panX: 0, panY: 0 }); splats.invalidate(); };
  function drawMarks() {
    const { context, at, ratio } = splats, px = ratio();
    for (const [g] of best(lit.points, 3)) {
      const [x, y] = at(scene().centers[g]);
      outline(context, () => context.arc(x, y, 8 * px, 0, 2 * Math.PI), 1.5 * px);
    }
    if (look.points < 0) return;
    const [x, y] = at(scene().centers[look.points]), side = 11 * px;
    outline(context, () => context.rect(x - side, y - side, 2 * side, 2 * side), 3 * px);
  }
  function paintCloud() {
    const levels = lit.points.map((_, g) => level(lit.points, g));
    for (let i = 0; i < count; i++) rgb.set(color(levels[nearest[i]]), 3 * i);
    splats.invalidate();
  }
  function place() {
    const steps = words16(scene().cloud);
    for (let i = 0; i < xyz.length; i++) xyz[i] = steps[i] / 32767.5 - 1;
    nearest = words16(scene().nearest);
    picture.src = scene().picture;
  }

  // ---- choosing ----------------------------------------------------------------------------------------------
  let turn = 0;
  async function refresh() {
    const mine = ++turn, found = {};
    for (const kind of ["image", "points"]) found[kind] = await shares(kind);
    if (mine !== turn) return; // something else was chosen meanwhile
    lit = found;
    drawView();
    paintCloud();
    describe();
  }
  // What is chosen on one side chooses its place on the other.
  function pick(kind, index) {
    const other = kind === "image" ? "points" : "image", side = scene();
    look.from = index < 0 ? null : kind;
    look[kind] = index;
    look[other] = index < 0 ? -1 : kind === "image" ? side.groupOf[index] : side.patchOf[index];
    if (kind === "points" && look.image >= 0 && !side.image.asking.includes(look.image)) look.image = -1;
    if (index >= 0) look.show = $("show").value = "attention";
    refresh();
  }
  function pickPatch(p) {
    if (p >= 0 && !scene().image.asking.includes(p)) {
      pick("image", -1);
      $("words").textContent = `The patch in ${KINDS.image.name(p)} is background, whose attention this page does not hold.`;
      turn++;
      return;
    }
    pick("image", p);
  }

  // ---- words -------------------------------------------------------------------------------------------------
  const list = (kind) => best(lit[kind], 3).map(([i, v]) => `${KINDS[kind].one} ${KINDS[kind].name(i)} (${percent(v)})`).join("; ");
  const how = () => (look.show === "rollout" ? "rollout through all layers"
    : `layer ${data.layers[look.layer]}, ${look.head ? `head ${look.head}` : "mean of the heads"}`);
  function describe() {
    view.dataset.chosen = look.image;
    cloud.dataset.chosen = look.points;
    $("layer-text").textContent = `${data.layers[look.layer]} of ${data.depth}`;
    $("patch").value = look.image;
    $("group").value = look.points;
    const { image, points, from } = look, said = [];
    const asks = (kind) => (look[kind] < 0 ? data.asking : `${KINDS[kind].one} ${KINDS[kind].name(look[kind])}`);
    if (from === "image" && points < 0) said.push("No visible group lies at this patch; the cloud shows the class token's attention.");
    if (from === "points" && image < 0) said.push("This group's patch holds none of the object; the picture shows the class token's attention.");
    if (from === "points" && image >= 0 && !scene().visible[points]) said.push("The group is on the far side, behind what the picture shows there.");
    $("words").textContent = `${scene().class}, ${how()}. In the picture ${asks("image")} attends most to ${list("image")}. ` +
      `On the cloud ${asks("points")} attends most to ${list("points")}. ${said.join(" ")}`;
    for (const kind of ["image", "points"]) {
      const values = lit[kind];
      $(`${kind}-ends`).textContent = `${percent(Math.min(...values))} to ${percent(Math.max(...values))}` +
        `, evenly ${percent(1 / values.length)}`;
    }
    for (const id of ["layer", "head", "patch", "group"]) $(id).disabled = look.show === "rollout";
  }

  // ---- controls ----------------------------------------------------------------------------------------------
  const option = (select, value, text) => {
    const node = document.createElement("option");
    node.value = value;
    node.textContent = text;
    select.append(node);
  };
  function choices() {
    for (const [id, kind] of [["patch", "image"], ["group", "points"]]) {
      $(id).replaceChildren();
      option($(id), -1, "class token");
      for (const i of scene()[kind].asking) option($(id), i, `${KINDS[kind].one} ${KINDS[kind].name(i)}`);
    }
  }
  function open(object) {
    look.object = object;
    look.image = look.points = -1;
    look.from = null;
    place();
    choices();
    front();
    refresh();
  }
  data.objects.forEach((each, i) => option($("object"), i, `${i + 1}. ${each.class}: ${each.name}`));
  $("layer").max = data.layers.length - 1;
  $("layer").value = look.layer;
  option($("head"), 0, `mean of ${data.heads} heads`);
  for (let h = 1; h <= data.heads; h++) option($("head"), h, `head ${h}`);
  const on = (id, type, action) => $(id).addEventListener(type, action);
  on("object", "change", () => open(Number($("object").value)));
  on("layer", "input", () => { look.layer = Number($("layer").value); refresh(); });
  on("head", "change", () => { look.head = Number($("head").value); refresh(); });
  on("show", "change", () => {
    look.show = $("show").value;
    if (look.show === "rollout") look.image = look.points = -1;
    look.from = null;
    refresh();
  });
  on("patch", "change", () => pick("image", Number($("patch").value)));
  on("group", "change", () => pick("points", Number($("group").value)));
  on("left", "click", () => splats.turn(Math.PI / 12, 0));
  on("right", "click", () => splats.turn(-Math.PI / 12, 0));
  on("nearer", "click", () => splats.zoom(1.25));
  on("farther", "click", () => splats.zoom(0.8));
  on("front", "click", front);

  view.addEventListener("click", (event) => {
    const box = view.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    pickPatch(Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column)));
  });
  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  // From patch to patch of the object: the nearest one that way.
  view.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return pick("image", -1);
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return undefined;
    event.preventDefault();
    const asking = scene().image.asking;
    if (look.image < 0) return pick("image", asking[Math.floor(asking.length / 2)]);
    const [row, column] = [Math.floor(look.image / columns), look.image % columns];
    const ahead = (p) => (Math.floor(p / columns) - row) * move[0] + ((p % columns) - column) * move[1];
    const aside = (p) => Math.abs((Math.floor(p / columns) - row) * move[1]) + Math.abs(((p % columns) - column) * move[0]);
    const [next] = asking.filter((p) => ahead(p) > 0).sort((a, b) => ahead(a) + 3 * aside(a) - ahead(b) - 3 * aside(b));
    return next === undefined ? undefined : pick("image", next);
  });
  const TURNS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  cloud.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { n: 1, p: -1 }[event.key.toLowerCase()], arrow = TURNS[event.key];
    if (by) pick("points", (look.points + by + data.groups + (look.points < 0 && by < 0 ? 1 : 0)) % data.groups);
    else if (arrow) splats.turn(...arrow.map((v) => (v * Math.PI) / 24));
    else if (event.key === "Escape") pick("points", -1);
    else return;
    event.preventDefault();
  });

  for (const kind of ["image", "points"]) {
    const map = $(`${kind}-map`).getContext("2d"), strip = map.createImageData(256, 1);
    for (let i = 0; i < 256; i++) strip.data.set([...color(i), 255], 4 * i);
    map.putImageData(strip, 0, 0);
  }
  open(0);
})();
