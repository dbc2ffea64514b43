//! The colours and text sizes of all pictures.
//!
//! The colours of marks are those of Okabe and Ito, and scores have the viridis scale; both stay apart for colour-blind
//! readers. A light and a dark value of each role is a CSS custom property. The rules have no specificity, so a page
//! overrides a property with any rule of its own. No meaning is told by colour alone: shape, outline or position tells it
//! too.

/// The text sizes by class.
pub(super) const TITLE_SIZE: f64 = 16.0;
pub(super) const TEXT_SIZE: f64 = 13.0;
pub(super) const SMALL_SIZE: f64 = 11.0;

/// A colour with its values on a light and on a dark page.
struct Colour {
    name: &'static str,
    light: &'static str,
    dark: &'static str,
}

const COLOURS: [Colour; 10] = [
    Colour { name: "ground", light: "#ffffff", dark: "#14181f" },
    Colour { name: "ink", light: "#1c2430", dark: "#e6e9ef" },
    Colour { name: "muted", light: "#4b5565", dark: "#aab4c3" },
    Colour { name: "grid", light: "#e3e7ee", dark: "#2c3442" },
    Colour { name: "other", light: "#7b8494", dark: "#8a94a6" },
    Colour { name: "best", light: "#0072b2", dark: "#56b4e9" },
    Colour { name: "best-text", light: "#005d92", dark: "#7cc5ef" },
    Colour { name: "heldout", light: "#d55e00", dark: "#e69f00" },
    Colour { name: "good", light: "#00895f", dark: "#009e73" },
    Colour { name: "bad", light: "#d55e00", dark: "#e8762c" },
];

/// The viridis scale from low to high, equal on both grounds. A mark that is filled with it has an outline in `ink`.
pub(super) const SCORE_COLOURS: [&str; 7] =
    ["#440154", "#443a83", "#31688e", "#21918c", "#35b779", "#8fd744", "#fde725"];

/// The rules by class. Each colour is written twice: a reader without custom properties uses the light value.
const RULES: [(&str, &str); 35] = [
    ("text", "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif;fill:$ink"),
    (".title", "font-size:16px;font-weight:600"),
    (".label", "font-size:13px"),
    (".small", "font-size:11px"),
    (".muted", "fill:$muted"),
    (".halo", "paint-order:stroke;stroke:$ground;stroke-width:3;stroke-linejoin:round"),
    (".best-text", "fill:$best-text;font-weight:600"),
    (".ground", "fill:$ground"),
    (".grid", "stroke:$grid;stroke-width:1"),
    (".axis", "stroke:$muted;stroke-width:1"),
    (".none", "fill:none"),
    (".bar", "stroke-width:1.5;fill:none"),
    (".s-other", "stroke:$other"),
    (".s-best", "stroke:$best"),
    (".s-heldout", "stroke:$heldout"),
    (".f-other", "fill:$other;stroke:$ground;stroke-width:1"),
    (".f-best", "fill:$best;stroke:$ground;stroke-width:1"),
    (".f-heldout", "fill:$heldout;stroke:$ground;stroke-width:1"),
    (".f-initial", "fill:$ground;stroke:$ink;stroke-width:2"),
    (".f-hollow", "fill:$ground;stroke:$other;stroke-width:1.5"),
    (".f-part", "fill:$best"),
    (".f-good", "fill:$good"),
    (".f-bad", "fill:$bad"),
    (".step", "fill:none;stroke:$best;stroke-width:2.5;stroke-linejoin:round"),
    (".edge", "fill:none;stroke:$other;stroke-width:1.2"),
    (".path", "fill:none;stroke:$best;stroke-width:3"),
    (".dashed", "stroke-dasharray:4 3"),
    (".dotted", "stroke-dasharray:1.5 2.5"),
    (".node", "stroke:$ink;stroke-width:1.5"),
    (".empty", "fill:$ground"),
    (".ring", "fill:none;stroke:$best;stroke-width:2.5"),
    (".front", "fill:none;stroke:$ink;stroke-width:1.2"),
    (".cell", "fill:$ground;stroke:$other;stroke-width:1"),
    (".sign", "stroke:$ground;stroke-width:2;fill:none"),
    (".cross", "stroke:$ink;stroke-width:1.5;fill:none"),
];

/// Returns rules that give the elements of a class the colours as custom properties: by the colour scheme of the system, or of
/// the notebook or page around them, which counts more.
pub fn colours(class: &str) -> String {
    let mut css = String::new();
    let mut block = |before: &str, within: &str, value: fn(&Colour) -> &'static str, scheme: &str| {
        css.push_str(&format!("{before}{within}:where({class}){{"));
        for colour in &COLOURS {
            css.push_str(&format!("--synth-{}:{};", colour.name, value(colour)));
        }
        css.push_str(&format!("color-scheme:{scheme}}}\n"));
    };
    let light: fn(&Colour) -> &'static str = |colour| colour.light;
    let dark: fn(&Colour) -> &'static str = |colour| colour.dark;
    block("", "", light, "light dark");
    block("@media (prefers-color-scheme:dark){", "", dark, "light dark");
    block("}\n", ":where([data-theme=light],[data-jp-theme-light=true],.vscode-light) ", light, "light");
    block("", ":where([data-theme=dark],[data-jp-theme-light=false],.vscode-dark) ", dark, "dark");
    css
}

/// Returns the stylesheet of all pictures, for a page that shows them inline.
pub fn stylesheet() -> String {
    let mut css = colours(".synth-picture");
    for (class, rule) in RULES {
        css.push_str(".synth-picture ");
        css.push_str(class);
        css.push('{');
        for declaration in rule.split(';') {
            css.push_str(&with_colour(declaration));
        }
        css.push_str("}\n");
    }
    for (index, colour) in SCORE_COLOURS.iter().enumerate() {
        css.push_str(&format!(".synth-picture .v{index}{{fill:{colour}}}\n"));
    }
    // A reader sees which candidate or row has the focus.
    css.push_str(".synth-picture [tabindex]:focus{outline:none}\n");
    css.push_str(".synth-picture [tabindex]:focus-visible{outline:2px solid var(--synth-best);outline-offset:2px}\n");
    css
}

/// Writes a declaration, with its light value and then its custom property if it names a colour.
fn with_colour(declaration: &str) -> String {
    let Some((property, name)) = declaration.split_once(":$") else { return format!("{declaration};") };
    match COLOURS.iter().find(|colour| colour.name == name) {
        Some(colour) => format!("{property}:{};{property}:var(--synth-{name});", colour.light),
        None => String::new(),
    }
}

/// Returns the class of the colour of a score, given its share of the way from the lowest to the highest.
pub(super) fn score_class(share: f64) -> &'static str {
    const CLASSES: [&str; SCORE_COLOURS.len()] = ["v0", "v1", "v2", "v3", "v4", "v5", "v6"];
    let place = (share.clamp(0.0, 1.0) * (CLASSES.len() - 1) as f64).round() as usize;
    CLASSES.get(place).copied().unwrap_or("empty")
}

#[cfg(test)]
mod tests {
    use super::{COLOURS, Colour, RULES, stylesheet};

    /// Returns the relative luminance of a colour as the accessibility guidelines define it.
    fn luminance(hex: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (a, b) = (luminance(one), luminance(other));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn colours_have_enough_contrast_on_both_grounds() {
        let ground = &COLOURS[0];
        assert_eq!(ground.name, "ground");
        for Colour { name, light, dark } in &COLOURS[1..] {
            let needed = match *name {
                "ink" | "muted" | "best-text" => 4.5,
                // Lines that only guide the eye.
                "grid" => 1.0,
                _ => 3.0,
            };
            for (value, ground) in [(light, ground.light), (dark, ground.dark)] {
                let found = contrast(value, ground);
                assert!(found >= needed, "{name} {value} on {ground}: {found:.2}, needs {needed}");
            }
        }
    }

    #[test]
    fn rules_name_known_colours() {
        for (class, rule) in RULES {
            for name in rule.split(';').filter_map(|part| part.split_once(":$")).map(|(_, name)| name) {
                assert!(COLOURS.iter().any(|colour| colour.name == name), "{class} names {name}");
            }
        }
        let css = stylesheet();
        assert_eq!(css.matches('{').count(), css.matches('}').count());
        assert!(css.contains("prefers-color-scheme:dark") && !css.contains('$') && !css.contains('<'));
    }
}
