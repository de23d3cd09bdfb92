"use strict";
// Balls with a depth buffer, drawn on the CPU into a plain canvas: no WebGL, which a phone or a remote desktop may
// lack, and the buffer of point numbers beside it says what was clicked.

const hex = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `of` says what is to be drawn: radius() of a point in radii of the cloud, balls() the points that are drawn larger in
// the ink's colour, overlay() after each drawing, clicked(point) with -1 beside the cloud. The caller fills `xyz` (within
// the unit sphere, y up on the screen) and `rgb`, then calls invalidate().
function makeSplats(canvas, count, of) {
  const START = { yaw: 0.6, pitch: 0.45, zoom: 1, panX: 0, panY: 0 };
  const MARGIN = 40; // the buffer's border, wider than any ball, spares clipping
  const DISTANCE = 3.2; // of the camera from the centre, in radii
  const TOP = 56, BOTTOM = 60; // the cloud stays between the legend and the buttons
  const view = { ...START };
  const xyz = new Float32Array(3 * count), rgb = new Uint8Array(3 * count);
  const screen = new Float32Array(3 * count); // x, y, pixels a radius
  const context = canvas.getContext("2d");
  let width = 0, height = 0, stride = 0, image, pixels, depths, ids, stamps = [];
  let focal = 1, wanted = false, every = 1, movedAt = -1e9, rest = 0;

  function invalidate() {
    if (wanted) return;
    wanted = true;
    requestAnimationFrame(() => { wanted = false; draw(); });
  }

  const ratio = () => width / Math.max(1, canvas.clientWidth);
  function resize() {
    const density = Math.min(devicePixelRatio || 1, 2);
    width = canvas.width = Math.max(1, Math.round(canvas.clientWidth * density));
    height = canvas.height = Math.max(1, Math.round(canvas.clientHeight * density));
    stride = width + 2 * MARGIN;
    image = new ImageData(stride, height + 2 * MARGIN);
    pixels = new Uint32Array(image.data.buffer);
    depths = new Float32Array(pixels.length);
    ids = new Int32Array(pixels.length);
    stamps = [];
    invalidate();
  }

  // A ball seen from the front: where its pixels are, how far each bulges, how bright it is.
  function stamp(radius) {
    return (stamps[radius] ||= (() => {
      const offset = [], bulge = [], light = [];
      for (let y = -radius; y <= radius; y++) for (let x = -radius; x <= radius; x++) {
        const squared = (x * x + y * y) / ((radius + 0.4) * (radius + 0.4));
        if (squared > 1) continue;
        const z = Math.sqrt(1 - squared);
        offset.push(y * stride + x);
        bulge.push(z * radius);
        light.push(Math.round(256 * Math.min(1, 0.62 + 0.4 * z)));
      }
      return { offset: Int32Array.from(offset), bulge: Float32Array.from(bulge), light: Int32Array.from(light) };
    })());
  }

  function project() {
    const cy = Math.cos(view.yaw), sy = Math.sin(view.yaw), cp = Math.cos(view.pitch), sp = Math.sin(view.pitch);
    const free = Math.max(80, canvas.clientHeight - TOP - BOTTOM) * ratio();
    focal = 0.5 * Math.min(width, free) * Math.sqrt(DISTANCE * DISTANCE - 1) * view.zoom;
    const x0 = width / 2 + view.panX * width, y0 = (height + (TOP - BOTTOM) * ratio()) / 2 + view.panY * width;
    for (let k = 0; k < 3 * count; k += 3) {
      const x = xyz[k], y = xyz[k + 1], z = xyz[k + 2];
      const across = x * cy - z * sy, away = x * sy + z * cy;
      const scale = focal / (DISTANCE - (y * sp + away * cp));
      screen[k] = x0 + across * scale;
      screen[k + 1] = y0 - (y * cp - away * sp) * scale;
      screen[k + 2] = scale;
    }
  }

  // `lift` brings it nearer, in radii of the cloud.
  function ball(point, radius, r, g, b, lift) {
    const scale = screen[3 * point + 2];
    const column = Math.round(screen[3 * point]) + MARGIN, row = Math.round(screen[3 * point + 1]) + MARGIN;
    const size = Math.max(1, Math.min(MARGIN - 1, Math.round(radius * scale)));
    if (!(column >= size && column < stride - size && row >= size && row < height + 2 * MARGIN - size)) return;
    const { offset, bulge, light } = stamp(size), start = row * stride + column;
    for (let p = 0; p < offset.length; p++) {
      // The scale grows towards the viewer, and so is the depth: scale² / focal for a radius, 1 / focal for a pixel.
      const depth = scale * (1 + (bulge[p] + lift * scale) / focal), to = start + offset[p];
      if (depth <= depths[to]) continue;
      const l = light[p];
      depths[to] = depth;
      ids[to] = point;
      pixels[to] = 0xff000000 | (((b * l) >> 8) << 16) | (((g * l) >> 8) << 8) | ((r * l) >> 8);
    }
  }

  function draw() {
    const begun = performance.now();
    const [r, g, b] = hex(css("--ground")), ink = hex(css("--ink"));
    pixels.fill(0xff000000 | (b << 16) | (g << 8) | r);
    depths.fill(-1);
    ids.fill(-1);
    project();
    const radius = of.radius() * Math.sqrt(every);
    for (let i = 0; i < count; i += every) ball(i, radius, rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2], 0);
    for (const point of of.balls()) ball(point, Math.max(0.02, 1.15 * of.radius()), ...ink, 0.04);
    context.putImageData(image, -MARGIN, -MARGIN);
    of.overlay();
    // A slow device draws every nth point while the cloud moves, and all of them once it rests.
    if (begun - movedAt < 150 && performance.now() - begun > 40 && every < 16) every *= 2;
  }

  function moved() {
    movedAt = performance.now();
    clearTimeout(rest);
    rest = setTimeout(() => { if (every > 1) { every = 1; invalidate(); } }, 200);
    invalidate();
  }
  const turn = (yaw, pitch) => {
    view.yaw += yaw;
    view.pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, view.pitch + pitch));
    moved();
  };
  const zoom = (factor) => { view.zoom = Math.max(0.3, Math.min(20, view.zoom * factor)); moved(); };
  const pan = (x, y) => { view.panX += x; view.panY += y; moved(); }; // in widths of the canvas
  const reset = () => { Object.assign(view, START); moved(); };

  // The drawn point nearest to a pixel, within a finger's reach, or -1.
  function pointAt(x, y) {
    let best = -1, closest = Infinity;
    const reach = Math.round(10 * ratio());
    for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) {
      const column = x + dx, row = y + dy, away = dx * dx + dy * dy;
      if (column < 0 || row < 0 || column >= width || row >= height || away >= closest) continue;
      const id = ids[(row + MARGIN) * stride + column + MARGIN];
      if (id >= 0) { closest = away; best = id; }
    }
    return best;
  }

  const fingers = new Map();
  let travelled = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!fingers.size) travelled = 0;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY], dx = now[0] - before[0], dy = now[1] - before[1];
    travelled += Math.hypot(dx, dy);
    if (fingers.size === 2) {
      const [, other] = [...fingers].find(([id]) => id !== event.pointerId);
      const gap = (place) => Math.max(1, Math.hypot(place[0] - other[0], place[1] - other[1]));
      zoom(gap(now) / gap(before));
      pan(dx / 2 / canvas.clientWidth, dy / 2 / canvas.clientWidth);
    } else if (event.shiftKey || event.buttons & 2) pan(dx / canvas.clientWidth, dy / canvas.clientWidth);
    else turn(-dx * 0.008, dy * 0.008);
    fingers.set(event.pointerId, now);
  });
  const lifted = (event) => {
    const wasAlone = fingers.size === 1;
    if (!fingers.delete(event.pointerId) || event.type !== "pointerup" || !wasAlone || travelled > 6) return;
    const box = canvas.getBoundingClientRect();
    const place = [event.clientX - box.left, event.clientY - box.top].map((v) => Math.round(v * ratio()));
    of.clicked(pointAt(...place));
  };
  canvas.addEventListener("pointerup", lifted);
  canvas.addEventListener("pointercancel", lifted);
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) * 0.0015));
  }, { passive: false });

  resize();
  new ResizeObserver(resize).observe(canvas);
  const at = (point) => [screen[3 * point], screen[3 * point + 1]];
  const scaleAt = (point) => screen[3 * point + 2];
  return { xyz, rgb, view, context, at, scaleAt, ratio, invalidate, turn, zoom, pan, reset };
}
