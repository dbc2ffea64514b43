//! What becomes of a line of the log.

use super::plain;

#[test]
fn colours_are_left_out_of_the_log() {
    assert_eq!(plain("\u{1b}[2m2026\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m it"), "2026 ERROR it");
    assert_eq!(plain("as it is"), "as it is");
    assert_eq!(plain("cut \u{1b}["), "cut ");
}
