// A chart series that draws each forecast as a band (80 % interval) with a dash at the expected close.

const OLD = { band: 0.13, dash: 0.55 };
const NEWEST = { band: 0.34, dash: 1 };

export class ForecastSeries {
  constructor() {
    this.data = null;
    this.options = null;
  }

  renderer() {
    return { draw: (target, toY) => this.draw(target, toY) };
  }

  update(data, options) {
    this.data = data;
    this.options = options;
  }

  // The first two only matter for the scale, the last is the value shown on the price axis.
  priceValueBuilder(row) {
    return [row.low, row.high, row.close];
  }

  isWhitespace(row) {
    return row.close === undefined;
  }

  defaultOptions() {
    return { color: "#f4b860", lastValueVisible: true, priceLineVisible: false };
  }

  draw(target, toY) {
    const { bars, visibleRange, barSpacing } = this.data;
    if (visibleRange === null) return;
    target.useBitmapCoordinateSpace(({ context, horizontalPixelRatio, verticalPixelRatio }) => {
      context.save();
      context.scale(horizontalPixelRatio, verticalPixelRatio);
      context.fillStyle = context.strokeStyle = this.options.color;
      for (let i = visibleRange.from; i < visibleRange.to; i++) {
        this.drawOne(context, bars[i], toY, barSpacing, i === bars.length - 1);
      }
      context.restore();
    });
  }

  drawOne(context, bar, toY, spacing, newest) {
    const { low, high, close } = bar.originalData;
    const [top, middle, bottom] = [toY(high), toY(close), toY(low)];
    if (top === null || middle === null || bottom === null) return;
    const left = bar.x - spacing / 2;
    const strength = newest ? NEWEST : OLD;
    context.globalAlpha = strength.band;
    context.fillRect(left, top, spacing, Math.max(1, bottom - top));
    context.globalAlpha = strength.dash;
    if (newest) context.strokeRect(left + 0.5, top, spacing - 1, Math.max(1, bottom - top));
    context.fillRect(left + spacing * 0.15, middle - 1, spacing * 0.7, 2);
  }
}
