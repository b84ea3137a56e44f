//! A line chart as plain SVG. It is readable on light and dark pages, and uses the reader's font.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 112.0;

/// Colours that colour-blind people can distinguish (Okabe and Ito). Each line also has its own mark.
const COLOURS: [&str; 9] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933",
    "#888888",
];

/// The horizontal axis and its label.
#[derive(Debug, Clone, Copy)]
pub enum Axis {
    /// Values at equal distances.
    Linear(&'static str),
    /// Powers of two, as numbers: 1, 2, 4.
    Log(&'static str),
    /// Powers of two, as powers: 2^16.
    Powers(&'static str),
}

/// One line.
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points, ascending by x.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
pub struct Plot {
    /// The title.
    pub title: &'static str,
    /// The horizontal axis.
    pub x: Axis,
    /// The label of the vertical axis.
    pub y: &'static str,
    /// The lines.
    pub series: Vec<Series>,
}

impl Axis {
    fn label(self) -> &'static str {
        let (Axis::Linear(label) | Axis::Log(label) | Axis::Powers(label)) = self;
        label
    }

    fn scaled(self, x: f64) -> f64 {
        match self {
            Axis::Linear(_) => x,
            Axis::Log(_) | Axis::Powers(_) => x.max(f64::MIN_POSITIVE).log2(),
        }
    }

    /// Formats a value for the axis. On an axis of powers, returns None for values between powers.
    fn tick(self, x: f64) -> Option<String> {
        match self {
            Axis::Linear(_) | Axis::Log(_) => Some(format!("{x}")),
            Axis::Powers(_) => {
                let power = x.log2().round();
                let written = format!("2<tspan dy=\"-5\" font-size=\"9\">{power}</tspan>");
                ((x.log2() - power).abs() < 0.01).then_some(written)
            }
        }
    }
}

impl Plot {
    /// Returns the chart as an SVG document.
    pub fn svg(&self) -> String {
        let mut legend = String::new();
        let height = HEIGHT.max(self.legend(&mut legend) + 18.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#777\" role=\"img\">\n\
             <title>{title}</title>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" font-weight=\"600\">{title}</text>\n",
            title = escaped(self.title)
        );
        self.grid(&mut svg);
        for (i, series) in self.series.iter().enumerate() {
            self.line(&mut svg, i, series);
        }
        svg + &legend + "</svg>\n"
    }

    fn all(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// Returns the highest mark of the vertical axis, and the distance between marks.
    fn height(&self) -> (f64, f64) {
        let most = self.all().map(|&(_, y)| y).fold(0.0, f64::max).max(1e-9);
        let rough = most / 5.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * magnitude);
        let step = steps.into_iter().find(|&step| step >= rough).unwrap_or(10.0 * magnitude);
        ((most / step).ceil() * step, step)
    }

    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let scaled = || self.all().map(|&(x, _)| self.x.scaled(x));
        let (low, high) =
            (scaled().fold(f64::INFINITY, f64::min), scaled().fold(f64::NEG_INFINITY, f64::max));
        let share = if high > low { (self.x.scaled(x) - low) / (high - low) } else { 0.5 };
        let across = LEFT + share * (WIDTH - LEFT - RIGHT);
        let up = y / self.height().0 * (HEIGHT - TOP - BOTTOM);
        (across, HEIGHT - BOTTOM - up)
    }

    fn grid(&self, svg: &mut String) {
        let (top, step) = self.height();
        let (floor, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for mark in 0..=(top / step).round() as u32 {
            let value = f64::from(mark) * step;
            let (_, y) = self.at((0.0, value));
            let faint = if mark == 0 { 1.0 } else { 0.3 };
            // Writing to a string cannot fail.
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#999\" \
                 stroke-opacity=\"{faint}\"/>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                LEFT - 8.0,
                y + 4.0,
                (value * 1000.0).round() / 1000.0
            );
        }
        let mut ticks: Vec<f64> = self.all().map(|&(x, _)| x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let mut free = f64::NEG_INFINITY;
        for tick in ticks {
            let (x, _) = self.at((tick, 0.0));
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{floor}\" y2=\"{}\" stroke=\"#999\"/>",
                floor + 5.0
            );
            // Omits labels that would touch the previous one.
            if x >= free
                && let Some(written) = self.x.tick(tick)
            {
                free = x + 26.0;
                let _ = writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{written}</text>",
                    floor + 20.0
                );
            }
        }
        let middle = (LEFT + end) / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            floor + 42.0,
            escaped(self.x.label()),
            (TOP + floor) / 2.0,
            escaped(self.y)
        );
    }

    fn line(&self, svg: &mut String, i: usize, series: &Series) {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<_> = series.points.iter().map(|&point| self.at(point)).collect();
        let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for &(x, y) in &points {
            mark(svg, i, x, y);
        }
    }

    /// Writes the names of the lines. Returns the y coordinate of the last one.
    fn legend(&self, svg: &mut String) -> f64 {
        let (mut x, mut y) = (LEFT, HEIGHT - 38.0);
        for (i, series) in self.series.iter().enumerate() {
            let width = 36.0 + series.name.chars().count() as f64 * 6.3;
            if x + width > WIDTH {
                (x, y) = (LEFT, y + 20.0);
            }
            mark(svg, i, x + 5.0, y - 4.0);
            let name = escaped(&series.name);
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{name}</text>", x + 16.0);
            x += width;
        }
        y
    }
}

/// Draws a circle, a square, a triangle or a diamond.
fn mark(svg: &mut String, i: usize, x: f64, y: f64) {
    let colour = COLOURS[i % COLOURS.len()];
    let _ = match i % 4 {
        0 => writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"),
        1 => writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\" fill=\"{colour}\"/>",
            x - 3.5,
            y - 3.5
        ),
        2 => writeln!(svg, "<path d=\"M{x:.1} {:.1}l5 8.5h-10z\" fill=\"{colour}\"/>", y - 5.0),
        _ => writeln!(svg, "<path d=\"M{x:.1} {:.1}l5 5-5 5-5-5z\" fill=\"{colour}\"/>", y - 5.0),
    };
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_within_the_frame() {
        let series = vec![
            Series { name: "a<b".into(), points: vec![(65536.0, 3.0), (131072.0, 97.0)] },
            Series { name: "empty".into(), points: Vec::new() },
        ];
        let plot = Plot { title: "t", x: Axis::Powers("rows"), y: "speed", series };
        assert_eq!(plot.height(), (100.0, 20.0));
        assert_eq!(plot.at((65536.0, 0.0)), (LEFT, HEIGHT - BOTTOM));
        assert_eq!(plot.at((131072.0, 100.0)), (WIDTH - RIGHT, TOP));
        let svg = plot.svg();
        assert!(svg.contains("a&lt;b") && svg.contains(">16</tspan>"), "{svg}");
    }

    #[test]
    fn many_lines_have_their_names_below_one_another() {
        let name = "a name of some length, as lines have";
        let series = |_| Series { name: name.into(), points: vec![(1.0, 1.0)] };
        let plot = |n: usize| Plot {
            title: "t",
            x: Axis::Log("n"),
            y: "",
            series: (0..n).map(series).collect(),
        };
        assert!(plot(2).svg().contains(&format!("viewBox=\"0 0 {WIDTH} {HEIGHT}\"")));
        let many = plot(9).svg();
        assert!(many.contains(&format!("viewBox=\"0 0 {WIDTH} 500\"")), "{many}");
    }

    #[test]
    fn what_lies_between_powers_has_no_label() {
        let axis = Axis::Powers("rows");
        assert!(axis.tick((1u64 << 20) as f64).is_some());
        assert_eq!(axis.tick((1u64 << 20) as f64 * std::f64::consts::SQRT_2), None);
    }

    #[test]
    fn nothing_and_one_point_can_be_drawn() {
        for points in [Vec::new(), vec![(1.0, 0.0)]] {
            let series = vec![Series { name: "s".into(), points }];
            let plot = Plot { title: "t", x: Axis::Log("n"), y: "speed", series };
            assert!(!plot.svg().contains("NaN"), "{}", plot.svg());
        }
    }
}
