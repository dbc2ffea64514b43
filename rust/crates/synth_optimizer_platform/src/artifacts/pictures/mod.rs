//! The pictures of a run as SVG: the score chart, the lineage and the heat map.
//!
//! Each picture is a function of a plain struct. It needs no font, script or other file, and the same data gives the same
//! text. Everything that a user, a model or a container wrote is escaped text. `svg` writes the document, `theme` has the
//! colours, `scale` the axes and `label` the texts that must not overlap.

mod chart;
mod chart_data;
mod chart_panels;
mod heat_map;
mod label;
mod lineage;
mod lineage_data;
mod lineage_layout;
mod lineage_nodes;
mod scale;
mod svg;
mod theme;

pub use chart::score_chart;
pub use chart_data::{ChartAxis, ChartCheck, ChartData, ChartEffort, ChartPoint, HeldoutMark};
pub use heat_map::{HeatCell, HeatColumn, HeatMapData, HeatRow, heat_map};
pub use label::text_width;
pub use lineage::lineage;
pub use lineage_data::{LineageData, LineageNode, LineageStatus};
pub(crate) use scale::{grouped, score_label};
pub use theme::{colours, stylesheet};

/// Where a picture is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureForm {
    /// A file of its own, or inside a notebook: the picture has its stylesheet with it.
    File,
    /// A part of a page that has [`stylesheet`] in its own styles. Candidates and rows can be focused.
    Inline,
}

/// The width that a picture is laid out for. A picture scales to any width; its texts are readable at about this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureWidth {
    /// For a window or a notebook.
    Wide,
    /// For a phone.
    Narrow,
}

/// How a picture is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureLayout {
    pub form: PictureForm,
    pub width: PictureWidth,
}

impl PictureLayout {
    /// The layout of files in a run directory.
    pub const FILE: Self = Self { form: PictureForm::File, width: PictureWidth::Wide };

    /// Returns the width of the drawing in its own units.
    fn units(self) -> f64 {
        match self.width {
            PictureWidth::Wide => 880.0,
            PictureWidth::Narrow => 390.0,
        }
    }
}
