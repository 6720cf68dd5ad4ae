//! The page of the kept results, as text and in a browser.

use std::fs;

use extant_testkit::browser::{self, Scheme};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use super::*;
use crate::results;
use crate::saved;

/// The kept results, and the same with `through` at half its rates.
fn results() -> (Vec<SavedReport>, Vec<SavedReport>) {
    let old = saved::read(&results::directory()).unwrap();
    let mut new = old.clone();
    let through = new.iter_mut().find(|result| result.bench == "through");
    for figure in &mut through.unwrap().figures {
        figure.samples.iter_mut().for_each(|sample| *sample /= 2.0);
    }
    (old, new)
}

fn page(old: &[SavedReport], new: &[SavedReport]) -> String {
    let pairs = old.iter().zip(new);
    let comparisons: Vec<_> = pairs.map(|(old, new)| Comparison::new(old, new)).collect();
    let contents = Contents {
        results: new,
        missing: &[("pool", "needs virsh: <install> it".to_owned())],
        comparisons: Some(&comparisons),
    };
    contents.document().unwrap()
}

#[test]
fn page_has_every_table_with_a_chart_and_what_belongs_to_a_number() {
    let (old, new) = results();
    let page = page(&old, &new);
    assert!(page.contains("<title>Results of all goals</title>"));
    for result in &new {
        let (bench, commit) = (&result.bench, result.commit.short());
        let method = document::methods().remove(bench).unwrap();
        let what = inline(&method.what).into_string();
        let command = format!("extant-bench -- {bench}<");
        for part in [&result.date, &commit, &what, &command] {
            assert!(page.contains(part.as_str()), "{bench}: {part}");
        }
        for (place, table) in (1..).zip(&result.tables) {
            let title = format!(
                "<title>{bench}, table {place}: {}</title>",
                table.heading[0]
            );
            assert!(page.contains(&title), "{title}");
        }
        for goal in &result.goals {
            assert!(page.contains(&goal.name), "{bench}: {}", goal.name);
        }
    }
    assert!(page.contains("needs virsh: &lt;install&gt; it"));
    for outer in ["<script", "src=", "href=\"http", "url(", "@import"] {
        assert!(!page.contains(outer), "{outer}");
    }
}

#[test]
fn halved_rates_of_ours_are_regressions_and_those_of_a_peer_are_not() {
    let (old, new) = results();
    let page = page(&old, &new);
    let row = |name: &str| {
        let rows = page
            .split("<tr>")
            .filter(|row| row.contains("no direction") || row.contains("is better"));
        let mut rows = rows.filter(|row| row.contains(name) && row.contains("0.500"));
        rows.next()
            .unwrap_or_else(|| panic!("{name} is not listed"))
            .to_owned()
    };
    assert!(row("1 layer, create --in<").contains("regression"));
    assert!(row("1 layer, dd in the mount<").contains("peer changed"));
}

#[test]
fn page_opens_in_a_browser_without_a_network_in_light_and_dark() {
    require!(requires::tool("chromium"));
    let (old, new) = results();
    let work = Workdir::new();
    let file = work.path().join("report.html");
    fs::write(&file, page(&old, &new)).unwrap();
    for (scheme, behind) in [
        (Scheme::Light, extant_page::PAGE.light),
        (Scheme::Dark, extant_page::PAGE.dark),
    ] {
        let view = browser::open(&file, scheme, (1200, 1000));
        assert_eq!(view.messages, [""; 0]);
        assert_eq!(view.pixels[0], [behind.0, behind.1, behind.2], "{scheme:?}");
        let good = match scheme {
            Scheme::Light => extant_page::GOOD.light,
            Scheme::Dark => extant_page::GOOD.dark,
        };
        // The bars of the goals that are met.
        let bars = view
            .pixels
            .iter()
            .filter(|&&pixel| pixel == [good.0, good.1, good.2]);
        assert!(bars.count() > 1000, "{scheme:?}");
        for part in [
            "goals met",
            "id=\"through\"",
            "<summary>Traps of this measurement",
        ] {
            assert!(view.document.contains(part), "{part}");
        }
    }
}
