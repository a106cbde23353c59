use super::*;
use crate::render::history::tests::incident;
use crate::render::text::is_deceptive;

fn made(name: &str) -> String {
    page(&incident(name), &Options { zone: TimeZone::UTC, nonce: 0xabcd, version: "0.1" })
}

/// What stands between `<` and `>`, by the name of the tag.
fn tags(page: &str) -> std::collections::BTreeMap<String, usize> {
    let mut tags = std::collections::BTreeMap::new();
    // The style and the script are ours and have comparisons in them.
    let body = page.split("</style>").nth(1).unwrap().split("<script").next().unwrap();
    for tag in body.split('<').skip(1) {
        let name: String = tag.chars().take_while(|ch| ch.is_ascii_alphanumeric() || *ch == '/').collect();
        *tags.entry(name).or_default() += 1;
    }
    tags
}

#[test]
fn no_name_adds_a_tag_an_attribute_or_a_character_that_deceives() {
    let harmless = made("name");
    for evil in [
        "</script><script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "\u{202e}\x1b[2J\n",
        "<!--",
        "]]></svg>",
        "&lt;b&gt;",
    ] {
        let page = made(evil);
        assert_eq!(tags(&page), tags(&harmless), "{evil:?}");
        let lower = page.to_lowercase();
        for forbidden in ["<img", "onerror=alert(1)>", "onmouseover='"] {
            assert!(!lower.contains(forbidden), "{evil:?}: {forbidden}");
        }
        assert!(!page.chars().any(|ch| ch != '\n' && is_deceptive(ch)), "{evil:?}");
    }
}

#[test]
fn the_page_asks_for_nothing_from_elsewhere_and_runs_its_own_script_only() {
    let page = made("name");
    let policy =
        "default-src 'none'; style-src 'nonce-000000000000abcd'; script-src 'nonce-000000000000abcd'";
    assert!(page.contains(policy), "{page}");
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("<style").count(), 1);
    for elsewhere in ["http:", "https:", "src=\"", "@import", "url(h", " style=\"", " onclick"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn what_is_drawn_is_also_told_in_a_table_with_headings() {
    let page = made("worker");
    assert!(page.contains("<th scope=\"row\">440</th><td>4</td>"), "{page}");
    assert!(page.contains("role=\"img\" aria-label=") && page.contains("href=\"#holders\""));
    assert!(page.contains("lang=\"en\""));
    let bars = page.matches("<rect class=\"compute\"").count();
    assert!(bars >= 1, "{page}");
    assert!(page.contains("<polyline class=\"curve\""), "a memory curve");
}
