//! The data of a lineage, and the choice of the candidates that it shows.

use std::collections::BTreeMap;

use synth_optimizer_core::model::event_fields::Direction;

/// The candidates of a run with their parents.
#[derive(Debug, Clone, PartialEq)]
pub struct LineageData {
    pub title: String,
    /// The name of the objective.
    pub objective: String,
    pub direction: Direction,
    /// In order of registration. A parent stands before its children; other parents are ignored.
    pub nodes: Vec<LineageNode>,
    /// The id of the best candidate.
    pub best: Option<String>,
}

/// A candidate of a lineage.
#[derive(Debug, Clone, PartialEq)]
pub struct LineageNode {
    pub id: String,
    /// All parents: two for a merge, and more for a rebase.
    pub parents: Vec<String>,
    /// The mean on train rows, if it has one.
    pub score: Option<f64>,
    pub status: LineageStatus,
    /// Why it was decided so, in words.
    pub reason: String,
    /// Whether it is on the frontier and no other candidates hold all of its cells.
    pub is_undominated: bool,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineageStatus {
    Initial,
    Accepted,
    Rejected,
    Superseded,
    /// The search ended, or lacked budget or scores, before the decision.
    Undecided,
    /// Its evaluation is not complete.
    Running,
}

impl LineageStatus {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Superseded => "superseded",
            Self::Undecided => "undecided",
            Self::Running => "running",
        }
    }
}

/// The candidates that are drawn. Each other one is counted at its nearest drawn ancestor.
#[derive(Debug)]
pub(super) struct Selection {
    /// Places in `LineageData::nodes`, in order.
    pub(super) shown: Vec<usize>,
    /// For each shown candidate: the shown ancestor of each parent, by its place in `shown`, and whether candidates
    /// between them are not drawn. The first one is that of the first parent.
    pub(super) parents: Vec<Vec<(usize, bool)>>,
    /// For each shown candidate: the places of candidates that are counted there.
    pub(super) hidden: Vec<Vec<usize>>,
    /// For each shown candidate: whether it is the best one or on the way to it.
    pub(super) on_path: Vec<bool>,
}

impl LineageData {
    /// Chooses the candidates to draw: all of them up to `limits.0`, else at most `limits.1`. The best one and its
    /// ancestors, the frontier and accepted candidates come first, then those with children.
    pub(super) fn select(&self, (all, most): (usize, usize)) -> Selection {
        let place_of: BTreeMap<&str, usize> =
            self.nodes.iter().enumerate().rev().map(|(place, node)| (node.id.as_str(), place)).collect();
        let parents: Vec<Vec<usize>> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(place, node)| {
                let known = node.parents.iter().filter_map(|id| place_of.get(id.as_str()).copied());
                known.filter(|parent| *parent < place).collect()
            })
            .collect();
        let best = self.best.as_deref().and_then(|id| place_of.get(id).copied());
        let path: Vec<usize> = std::iter::successors(best, |place| parents[*place].first().copied()).collect();
        let kept = self.keep(&parents, &path, all, most);

        let shown: Vec<usize> = (0..self.nodes.len()).filter(|place| kept[*place]).collect();
        let index_of: BTreeMap<usize, usize> = shown.iter().enumerate().map(|(index, place)| (*place, index)).collect();
        // The nearest shown ancestor of each candidate, itself included; ancestors come first.
        let mut nearest: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        for (place, parents) in parents.iter().enumerate() {
            let inherited = || parents.first().and_then(|parent| nearest[*parent]);
            nearest.push(index_of.get(&place).copied().or_else(inherited));
        }
        let mut hidden = vec![Vec::new(); shown.len()];
        for place in (0..self.nodes.len()).filter(|place| !kept[*place]) {
            if let Some(index) = nearest[place].or((!shown.is_empty()).then_some(0)) {
                hidden[index].push(place);
            }
        }
        let links = |place: &usize| {
            let mut links: Vec<(usize, bool)> = Vec::new();
            for parent in &parents[*place] {
                if let Some(index) = nearest[*parent]
                    && links.iter().all(|(known, _)| *known != index)
                {
                    links.push((index, !kept[*parent]));
                }
            }
            links
        };
        let on_path = shown.iter().map(|place| path.contains(place)).collect();
        Selection { parents: shown.iter().map(links).collect(), shown, hidden, on_path }
    }

    /// Returns for each candidate whether it is drawn.
    fn keep(&self, parents: &[Vec<usize>], path: &[usize], all: usize, most: usize) -> Vec<bool> {
        if self.nodes.len() <= all {
            return vec![true; self.nodes.len()];
        }
        let mut has_children = vec![false; self.nodes.len()];
        parents.iter().flatten().for_each(|parent| has_children[*parent] = true);
        let mut kept = vec![false; self.nodes.len()];
        let mut count = 0;
        let mut keep = |place: usize| {
            if count < most && !std::mem::replace(&mut kept[place], true) {
                count += 1;
            }
        };
        // The path may be longer than the picture has room for: its ends and an even choice between them.
        let stride = path.len().div_ceil((most / 3).max(1)).max(1);
        path.first().into_iter().chain(path.last()).for_each(|place| keep(*place));
        if !self.nodes.is_empty() {
            keep(0);
        }
        path.iter().step_by(stride).for_each(|place| keep(*place));
        let mut rest: Vec<usize> = (0..self.nodes.len()).filter(|place| !path.contains(place)).collect();
        rest.sort_by(|a, b| {
            self.priority(*b, has_children[*b]).cmp(&self.priority(*a, has_children[*a])).then(b.cmp(a))
        });
        // Rejected candidates without children are only counted.
        for place in rest {
            let status = self.nodes[place].status;
            let is_leaf = !has_children[place];
            let is_counted = match status {
                LineageStatus::Rejected | LineageStatus::Superseded | LineageStatus::Undecided => is_leaf,
                LineageStatus::Initial | LineageStatus::Accepted | LineageStatus::Running => false,
            };
            if !is_counted || self.nodes[place].is_undominated {
                keep(place);
            }
        }
        kept
    }

    /// Returns how much a candidate deserves a place in a picture with too little room.
    fn priority(&self, place: usize, has_children: bool) -> (bool, bool, bool, bool) {
        let node = &self.nodes[place];
        let is_accepted = matches!(node.status, LineageStatus::Accepted | LineageStatus::Initial);
        (node.is_undominated, node.status == LineageStatus::Running, is_accepted, has_children)
    }
}
