"use strict";
(() => {
  const svg = document.getElementById("timeline");
  if (svg) {
    const left = +svg.dataset.left, width = +svg.dataset.width, from = +svg.dataset.from, to = +svg.dataset.to;
    let a = 0, b = 1;
    const moving = [...svg.querySelectorAll("[data-a]")];
    const curves = [...svg.querySelectorAll("[data-points]")];
    const ticks = document.getElementById("ticks");
    const place = (x) => left + (x - a) / (b - a) * width;
    const label = (ms, span) => {
      const iso = new Date(ms).toISOString();
      return span < 10e3 ? iso.slice(11, 23) : span < 86400e3 ? iso.slice(11, 19) : iso.slice(5, 16).replace("T", " ");
    };
    const draw = () => {
      for (const shape of moving) {
        const x0 = place(+shape.dataset.a), x1 = place(+(shape.dataset.b ?? shape.dataset.a));
        if (shape.tagName === "rect") {
          const l = Math.max(x0, left), r = Math.min(x1, left + width);
          shape.setAttribute("x", l);
          shape.setAttribute("width", Math.max(r - l, r >= left && l <= left + width ? 2 : 0));
        } else {
          shape.setAttribute("transform", `translate(${x0} 0)`);
        }
        shape.style.visibility = x1 < left || x0 > left + width ? "hidden" : "visible";
      }
      for (const curve of curves) {
        curve.setAttribute("points", curve.dataset.points.split(" ").map((point) => {
          const [x, y] = point.split(",");
          return `${place(+x)},${y}`;
        }).join(" "));
      }
      const texts = ticks.querySelectorAll("text");
      texts.forEach((text, i) => {
        const x = a + (b - a) * i / (texts.length - 1);
        text.textContent = label(from + (to - from) * x, (to - from) * (b - a));
      });
    };
    const zoom = (factor, at) => {
      const span = Math.min(1, Math.max(1e-6, (b - a) * factor));
      const centre = a + (b - a) * at;
      a = Math.min(1 - span, Math.max(0, centre - span * at));
      b = a + span;
      draw();
    };
    const pan = (by) => { const span = b - a; a = Math.min(1 - span, Math.max(0, a + by * span)); b = a + span; draw(); };
    const actions = { in: () => zoom(.5, .5), out: () => zoom(2, .5), left: () => pan(-.25), right: () => pan(.25), all: () => { a = 0; b = 1; draw(); } };
    for (const button of document.querySelectorAll("button[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      zoom(event.deltaY > 0 ? 1.25 : .8, Math.min(1, Math.max(0, (x - left) / width)));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const act = { "+": actions.in, "=": actions.in, "-": actions.out, ArrowLeft: actions.left, ArrowRight: actions.right, "0": actions.all }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }
  const rows = [...document.querySelectorAll("#events tbody tr")], what = document.getElementById("what"), gpu = document.getElementById("gpu"), words = document.getElementById("words"), shown = document.getElementById("shown");
  if (what) {
    const filter = () => {
      const wanted = words.value.toLowerCase();
      let n = 0;
      for (const row of rows) {
        const fits = (!what.value || row.dataset.what === what.value) && (!gpu.value || row.dataset.gpu === gpu.value) && (!wanted || row.textContent.toLowerCase().includes(wanted));
        row.hidden = !fits;
        n += fits;
      }
      shown.textContent = `${n} of ${rows.length} events shown`;
    };
    for (const control of [what, gpu, words]) control.addEventListener("input", filter);
    filter();
  }
})();
