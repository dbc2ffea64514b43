//! For which widths a view draws its pictures.

use maud::{Markup, PreEscaped, html};

use crate::artifacts::pictures::{PictureForm, PictureLayout, PictureWidth};

/// For which widths a view draws its pictures.
#[derive(Debug, Clone, Copy)]
pub(super) enum PictureWidths {
    /// For the window of the reader, whose width the page names.
    Window(PictureWidth),
    /// For a window and for a phone. The stylesheet shows the one that fits, because a file cannot ask for another one.
    Both,
}

impl PictureWidths {
    /// Draws a picture.
    pub(super) fn draw(self, picture: impl Fn(PictureLayout) -> String) -> Markup {
        let drawn = |width| PreEscaped(picture(PictureLayout { form: PictureForm::Inline, width }));
        match self {
            Self::Window(width) => drawn(width),
            Self::Both => html! {
                div.for-wide { (drawn(PictureWidth::Wide)) }
                div.for-narrow { (drawn(PictureWidth::Narrow)) }
            },
        }
    }
}
