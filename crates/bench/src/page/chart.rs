//! Panels of bars as SVG, drawn by plotters.
//!
//! All panels are beside each other and share the names of the rows. A bar begins at zero. Where
//! the values of a panel differ by more than [`LINEAR_MAX`], its axis is logarithmic and has points
//! instead of bars, as their length would mean nothing. Whiskers are the least and the greatest
//! sample. Colours are those of `extant_page`, which replaces them on dark pages.

use std::error::Error;

use anyhow::{Result, anyhow};
use extant_page::{FAINT_INK, INK, LINE, SERIES};
use maud::html;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::columns::{Bar, Panel};
use crate::table::number;

/// Panels of one picture; more of them would be too narrow.
pub const PANELS_MAX: usize = 6;
const LINEAR_MAX: f64 = 200.0;

const WIDTH: u32 = 1040;
const LETTER: f64 = 6.4;
const NAME_LETTERS_MAX: usize = 48;
const GAP: i32 = 14;
const BAR: i32 = 9;
const ROW_MIN: i32 = 20;
const HEAD: i32 = 22;
const LEGEND: i32 = 16;
const AXIS: i32 = 22;
const FONT: &str = "sans-serif";
const FONT_SIZE: i32 = 12;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Names of rows and their panels as one SVG element; `title` and `description` are for readers who
/// do not see it.
pub fn svg(title: &str, description: &str, names: &[String], panels: &[Panel]) -> Result<String> {
    let bars = panels.iter().map(|panel| panel.series.len()).max();
    let row = ROW_MIN.max(bars.unwrap_or(1) as i32 * BAR + 8);
    let legend = panels.iter().map(legend_lines).max().unwrap_or(0) * LEGEND;
    let height = HEAD + legend + names.len() as i32 * row + AXIS;
    let mut text = String::new();
    {
        let size = (WIDTH, height as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let frame = Frame {
            names,
            row,
            top: HEAD + legend,
        };
        frame
            .draw(&root, panels)
            .map_err(|error| anyhow!("chart {title}: {error}"))?;
        root.present()
            .map_err(|error| anyhow!("chart {title}: {error}"))?;
    }
    let about = html! { title { (title) } desc { (description) } }.into_string();
    let opened = text.replacen("<svg ", "<svg role=\"img\" ", 1);
    Ok(opened.replacen(">\n", &format!(">\n{about}\n"), 1))
}

/// Lines of a legend: one for each series where there are several.
fn legend_lines(panel: &Panel) -> i32 {
    match panel.series.len() {
        1 => 0,
        count => count as i32,
    }
}

struct Frame<'a> {
    names: &'a [String],
    /// Height of a row.
    row: i32,
    /// Where the first row begins.
    top: i32,
}

type Drawn = std::result::Result<(), Box<dyn Error>>;

impl Frame<'_> {
    fn draw(&self, root: &Area<'_>, panels: &[Panel]) -> Drawn {
        let shown: Vec<_> = self.names.iter().map(|name| shortened(name)).collect();
        let letters = shown.iter().map(|name| name.chars().count()).max();
        let left = (letters.unwrap_or(0) as f64 * LETTER) as i32 + 12;
        for (at, name) in shown.into_iter().enumerate() {
            let y = self.top + at as i32 * self.row + self.row / 2;
            let style = text(INK.light).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(name, (left - 8, y), style))?;
        }
        let room = WIDTH as i32 - left;
        // A panel with several series has more to compare.
        let weight = |panel: &Panel| if panel.series.len() > 1 { 2 } else { 1 };
        let weights: i32 = panels.iter().map(weight).sum();
        let mut x = left;
        for panel in panels {
            let width = room * weight(panel) / weights;
            let height = self.top + self.names.len() as i32 * self.row + AXIS;
            let area = root.clone().shrink((x, 0), (width - GAP, height));
            self.panel(&area, panel)?;
            x += width;
        }
        Ok(())
    }

    fn panel(&self, area: &Area<'_>, panel: &Panel) -> Drawn {
        let scale = Scale::of(panel);
        let note = if scale.is_logarithmic {
            ", log scale"
        } else {
            ""
        };
        let title = format!("{}{note}", panel.title);
        area.draw(&Text::new(title, (0, 4), text(INK.light)))?;
        if panel.series.len() > 1 {
            for (at, name) in panel.series.iter().enumerate() {
                let y = HEAD + at as i32 * LEGEND;
                let tone = SERIES[at % SERIES.len()];
                let swatch = [(0, y + 1), (10, y + 10)];
                area.draw(&Rectangle::new(swatch, rgb(tone.light).filled()))?;
                area.draw(&Text::new(name.clone(), (16, y), text(FAINT_INK.light)))?;
            }
        }
        let (plot, rows) = (area.margin(self.top, 0, 0, 0), self.names.len() as f64);
        let mut chart = ChartBuilder::on(&plot)
            .x_label_area_size(AXIS)
            .build_cartesian_2d(scale.low..scale.high, rows..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(4)
            .max_light_lines(0)
            .bold_line_style(rgb(LINE.light))
            .axis_style(rgb(LINE.light))
            .x_label_style(text(FAINT_INK.light))
            .x_label_formatter(&|at: &f64| scale.label(*at))
            .draw()?;
        let slot = 1.0 / panel.series.len().max(1) as f64;
        let slot = slot * f64::from(self.row - 6) / f64::from(self.row);
        for (at, row) in panel.rows.iter().enumerate() {
            let start = at as f64 + 3.0 / f64::from(self.row);
            for (series, bar) in row.iter().enumerate() {
                let Some(bar) = bar else { continue };
                let tone = bar.tone.unwrap_or(SERIES[series % SERIES.len()]);
                let (color, top) = (rgb(tone.light), start + slot * series as f64);
                let middle = top + slot / 2.0;
                let value = scale.place(bar.value);
                if scale.is_logarithmic {
                    let point = Circle::new((value, middle), 4, color.filled());
                    chart.plotting_area().draw(&point)?;
                } else {
                    let corners = [(0.0, top + slot * 0.1), (value, top + slot * 0.9)];
                    let bar = Rectangle::new(corners, color.filled());
                    chart.plotting_area().draw(&bar)?;
                }
                if let Some((min, max)) = bar.range {
                    let ends = [(scale.place(min), middle), (scale.place(max), middle)];
                    let whisker = PathElement::new(ends, rgb(INK.light).stroke_width(2));
                    chart.plotting_area().draw(&whisker)?;
                }
            }
        }
        if let Some(mark) = panel.mark {
            let x = scale.place(mark);
            let line = PathElement::new([(x, 0.0), (x, rows)], rgb(INK.light));
            chart.plotting_area().draw(&line)?;
        }
        Ok(())
    }
}

/// The axis of a panel.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn of(panel: &Panel) -> Self {
        let bars = || panel.rows.iter().flatten().flatten();
        let ends = |bar: &Bar| {
            let (min, max) = bar.range.unwrap_or((bar.value, bar.value));
            [bar.value, min, max]
        };
        let values: Vec<f64> = bars().flat_map(ends).chain(panel.mark).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().fold(0.0, f64::min);
        let positive = values.iter().copied().filter(|&value| value > 0.0);
        let smallest = positive.fold(f64::INFINITY, f64::min);
        if least == 0.0 && most / smallest > LINEAR_MAX {
            return Self {
                low: smallest.log10().floor(),
                high: most.log10().ceil(),
                is_logarithmic: true,
            };
        }
        // An axis of nothing but zeros has a length too.
        let high = if most > least { most * 1.04 } else { 1.0 };
        Self {
            low: least * 1.04,
            high,
            is_logarithmic: false,
        }
    }

    /// Where a value is; zero, which a logarithmic axis lacks, is at its end.
    fn place(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            value.log10().max(self.low)
        } else {
            value
        }
    }

    fn label(&self, at: f64) -> String {
        let value = if self.is_logarithmic {
            10f64.powf(at)
        } else {
            at
        };
        let digits = number(value);
        if digits.contains('.') {
            digits
                .trim_end_matches('0')
                .trim_end_matches('.')
                .to_owned()
        } else {
            digits
        }
    }
}

/// The end of a long name: it distinguishes rows.
fn shortened(name: &str) -> String {
    let name = name.trim();
    let count = name.chars().count();
    if count <= NAME_LETTERS_MAX {
        return name.to_owned();
    }
    let rest: String = name.chars().skip(count - NAME_LETTERS_MAX + 1).collect();
    format!("…{rest}")
}

fn rgb(color: extant_page::Color) -> RGBColor {
    RGBColor(color.0, color.1, color.2)
}

fn text(color: extant_page::Color) -> TextStyle<'static> {
    (FONT, FONT_SIZE).into_font().color(&rgb(color))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[f64]) -> Panel {
        let bar = |&value: &f64| {
            let range = Some((value * 0.9, value * 1.1));
            vec![Some(Bar {
                value,
                range,
                tone: None,
            })]
        };
        Panel {
            title: "MiB/s <1>".to_owned(),
            series: vec!["extant".to_owned()],
            rows: values.iter().map(bar).collect(),
            mark: None,
        }
    }

    fn drawn(values: &[f64]) -> String {
        let names: Vec<_> = (0..values.len()).map(|at| format!("row {at}")).collect();
        svg("a & b", "bars", &names, &[panel(values)]).unwrap()
    }

    #[test]
    fn picture_has_title_names_bars_and_colours_of_pages() {
        let text = drawn(&[1000.0, 2000.0]);
        assert!(
            text.contains("<title>a &amp; b</title><desc>bars</desc>"),
            "{text}"
        );
        for part in ["row 1", "MiB/s &lt;1&gt;", "role=\"img\"", "2000"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let fill = format!("fill=\"{}\"", SERIES[0].light.hex().to_uppercase());
        assert_eq!(text.matches(&fill).count(), 2, "{text}");
        assert!(!text.contains("<circle"));
    }

    #[test]
    fn values_far_apart_are_points_on_a_logarithmic_axis() {
        let text = drawn(&[0.0, 3.0, 40_000.0]);
        assert_eq!(text.matches("<circle").count(), 3, "{text}");
        assert!(text.contains("log scale"));
    }

    #[test]
    fn nothing_but_zeros_is_drawn() {
        assert!(drawn(&[0.0, 0.0]).contains("row 1"));
    }
}
