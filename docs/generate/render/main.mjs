// node main.mjs < [[trace, wish], ...] > [drawing, ...]
import { readFileSync, writeFileSync } from "node:fs";
import { draw } from "explorer/draw.mjs";

writeFileSync(1, JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(([trace, wish]) => draw(trace, wish))));
