//! Shapes of flows: whether a submitted graph can run, and what the states of its members amount to.

use std::collections::{BTreeMap, HashMap};

use super::edge_groups::check_policy;
use crate::backend::flows::{FlowEdge, FlowNode, SUBMIT_EDGES_MAX, SUBMIT_NODES_MAX};
use crate::error::{ConflictKind, EngineError, Result};
use crate::ids::{NameError, check_free_string};
use crate::state::{FlowState, PublicState};

/// A submitted graph that can run. Nodes are known by their position in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Nodes, upstreams before downstreams; otherwise in request order.
    pub order: Vec<usize>,
    /// Upstream and downstream of each edge, in request order.
    pub ends: Vec<(usize, usize)>,
    /// Inbound edges of each node.
    pub inbound: Vec<u32>,
}

/// Checks the shape of a graph: sizes, names, ends, cycles and joins.
///
/// # Errors
/// In order: `InvalidInput` for too many nodes or edges; for each node, `InvalidInput` for a bad or repeated name; for
/// each edge, `InvalidInput` for an unknown end or a bad name for its data, `SelfReferencingEdge` for equal ends;
/// `InvalidInput` for a bad join or one on a node without inbound edges; `CycleDetected`.
pub fn check_graph(nodes: &[FlowNode], edges: &[FlowEdge]) -> Result<Graph> {
    check_size("nodes", nodes.len(), SUBMIT_NODES_MAX)?;
    check_size("edges", edges.len(), SUBMIT_EDGES_MAX)?;
    let positions = positions(nodes)?;
    let ends = edges.iter().map(|edge| check_ends(&positions, edge)).collect::<Result<Vec<_>>>()?;
    let mut inbound = vec![0u32; nodes.len()];
    for (_, to) in &ends {
        inbound[*to] += 1;
    }
    for (node, inbound) in nodes.iter().zip(&inbound) {
        check_join(node, *inbound)?;
    }
    let order = topological_order(nodes.len(), &ends).ok_or(ConflictKind::CycleDetected)?;
    Ok(Graph { order, ends, inbound })
}

fn check_size(what: &str, len: usize, max: usize) -> Result<()> {
    if len > max {
        return Err(EngineError::invalid(format_args!("{what}: {len} given, at most {max} are allowed")));
    }
    Ok(())
}

fn positions(nodes: &[FlowNode]) -> Result<HashMap<&str, usize>> {
    let mut positions = HashMap::with_capacity(nodes.len());
    for (position, node) in nodes.iter().enumerate() {
        if node.name.is_empty() {
            return Err(NameError::Empty { what: "node name" }.into());
        }
        check_free_string("node name", &node.name)?;
        if positions.insert(node.name.as_str(), position).is_some() {
            return Err(EngineError::invalid(format_args!("node {:?} is given twice", node.name)));
        }
    }
    Ok(positions)
}

fn check_ends(positions: &HashMap<&str, usize>, edge: &FlowEdge) -> Result<(usize, usize)> {
    let find = |name: &str| {
        let unknown = || EngineError::invalid(format_args!("edge names the unknown node {name:?}"));
        positions.get(name).copied().ok_or_else(unknown)
    };
    let (from, to) = (find(&edge.from)?, find(&edge.to)?);
    check_free_string("data_passing_ref", edge.data_passing_ref.as_deref().unwrap_or_default())?;
    if from == to {
        return Err(ConflictKind::SelfReferencingEdge.into());
    }
    Ok((from, to))
}

fn check_join(node: &FlowNode, inbound: u32) -> Result<()> {
    let Some(join) = node.join else { return Ok(()) };
    check_policy(join)?;
    if inbound == 0 {
        return Err(EngineError::invalid(format_args!("node {:?} joins without inbound edges", node.name)));
    }
    Ok(())
}

/// Nodes `0..nodes` with every upstream before its downstreams, lower numbers first where there is a choice; `None`
/// when the edges form a cycle. Ends must be below `nodes`.
#[must_use]
pub fn topological_order(nodes: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut downstreams = vec![Vec::new(); nodes];
    let mut waiting_for = vec![0usize; nodes];
    for (from, to) in edges {
        downstreams[*from].push(*to);
        waiting_for[*to] += 1;
    }
    let mut ready: std::collections::BTreeSet<usize> = (0..nodes).filter(|node| waiting_for[*node] == 0).collect();
    let mut order = Vec::with_capacity(nodes);
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for downstream in &downstreams[node] {
            waiting_for[*downstream] -= 1;
            if waiting_for[*downstream] == 0 {
                ready.insert(*downstream);
            }
        }
    }
    (order.len() == nodes).then_some(order)
}

/// What the states of its members amount to for a flow.
#[must_use]
pub fn derived_flow_state(counts: &BTreeMap<PublicState, u32>) -> FlowState {
    let any = |wanted: &[PublicState]| wanted.iter().any(|state| counts.get(state).is_some_and(|count| *count > 0));
    let mut present = counts.iter().filter(|(_, count)| **count > 0).map(|(state, _)| *state).peekable();
    if present.peek().is_none() {
        FlowState::Open
    } else if present.all(PublicState::is_terminal) {
        let bad = [PublicState::Failed, PublicState::Cancelled, PublicState::Expired];
        if any(&bad) { FlowState::Failed } else { FlowState::Completed }
    } else if any(&[PublicState::Active]) {
        FlowState::Running
    } else if any(&[
        PublicState::Suspended,
        PublicState::Delayed,
        PublicState::RateLimited,
        PublicState::WaitingChildren,
    ]) {
        FlowState::Blocked
    } else {
        FlowState::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::dependencies::{DependencyKind, EdgeDependencyPolicy, OnSatisfied};
    use crate::ids::LaneId;
    use proptest::prelude::*;

    fn node(name: &str) -> FlowNode {
        FlowNode {
            name: name.into(),
            lane_id: LaneId::new("main").unwrap(),
            execution_kind: "step".into(),
            input_payload: crate::Blob::empty(),
            payload_encoding: None,
            priority: 0,
            tags: BTreeMap::new(),
            policy: None,
            delay_until: None,
            execution_deadline_at: None,
            join: None,
            trace_context: None,
        }
    }

    fn nodes(names: &[&str]) -> Vec<FlowNode> {
        names.iter().map(|name| node(name)).collect()
    }

    fn edge(from: &str, to: &str) -> FlowEdge {
        FlowEdge { from: from.into(), to: to.into(), kind: DependencyKind::SuccessOnly, data_passing_ref: None }
    }

    fn code(nodes: &[FlowNode], edges: &[FlowEdge]) -> &'static str {
        check_graph(nodes, edges).unwrap_err().code()
    }

    #[test]
    fn a_diamond_runs_from_its_top_to_its_bottom() {
        let edges = [edge("left", "end"), edge("right", "end"), edge("start", "left"), edge("start", "right")];
        let graph = check_graph(&nodes(&["end", "left", "right", "start"]), &edges).unwrap();
        assert_eq!(graph.order, [3, 1, 2, 0]);
        assert_eq!(graph.ends, [(1, 0), (2, 0), (3, 1), (3, 2)]);
        assert_eq!(graph.inbound, [2, 1, 1, 0]);
    }

    #[test]
    fn a_graph_may_be_empty() {
        assert_eq!(check_graph(&[], &[]).unwrap().order, [0usize; 0]);
    }

    #[test]
    fn names_must_be_unique_known_and_good() {
        assert_eq!(code(&nodes(&["a", "a"]), &[]), "invalid_input");
        assert_eq!(code(&nodes(&["a"]), &[edge("a", "b")]), "invalid_input");
        assert_eq!(code(&nodes(&["b"]), &[edge("a", "b")]), "invalid_input");
        assert_eq!(code(&nodes(&[""]), &[]), "invalid_input");
        assert_eq!(code(&nodes(&["a\n"]), &[]), "invalid_input");
        assert_eq!(code(&nodes(&["a".repeat(257).as_str()]), &[]), "invalid_input");
        let data = FlowEdge { data_passing_ref: Some("\u{7}".into()), ..edge("a", "b") };
        assert_eq!(code(&nodes(&["a", "b"]), &[data]), "invalid_input");
    }

    #[test]
    fn a_node_cannot_wait_for_itself_nor_through_others() {
        assert_eq!(code(&nodes(&["a"]), &[edge("a", "a")]), "self_referencing_edge");
        let cycle = [edge("a", "b"), edge("b", "c"), edge("c", "a")];
        assert_eq!(code(&nodes(&["a", "b", "c"]), &cycle), "cycle_detected");
    }

    #[test]
    fn a_join_needs_inbound_edges_and_a_quorum_that_can_be() {
        let any_of = EdgeDependencyPolicy::AnyOf { on_satisfied: OnSatisfied::LetRun };
        let joined = [node("a"), FlowNode { join: Some(any_of), ..node("b") }];
        assert_eq!(code(&joined, &[]), "invalid_input");
        check_graph(&joined, &[edge("a", "b")]).unwrap();
        let quorum = EdgeDependencyPolicy::Quorum { k: 0, on_satisfied: OnSatisfied::LetRun };
        let joined = [node("a"), FlowNode { join: Some(quorum), ..node("b") }];
        assert_eq!(code(&joined, &[edge("a", "b")]), "invalid_input");
    }

    #[test]
    fn a_graph_at_the_limits_passes_and_one_beyond_does_not() {
        let mut many: Vec<_> = (0..SUBMIT_NODES_MAX).map(|n| node(&n.to_string())).collect();
        let mut edges: Vec<_> = (0..SUBMIT_EDGES_MAX).map(|n| edge("0", &(1 + n % 999).to_string())).collect();
        check_graph(&many, &edges).unwrap();
        edges.push(edge("0", "1"));
        assert_eq!(code(&many, &edges), "invalid_input");
        many.push(node("one too many"));
        assert_eq!(code(&many, &[]), "invalid_input");
    }

    fn derived(counts: &[(PublicState, u32)]) -> FlowState {
        derived_flow_state(&counts.iter().copied().collect())
    }

    #[test]
    fn a_flow_is_over_when_all_members_are() {
        use PublicState::{Active, Cancelled, Completed, Delayed, Expired, Failed, Skipped, Suspended, Waiting};
        assert_eq!(derived(&[]), FlowState::Open);
        assert_eq!(derived(&[(Failed, 0)]), FlowState::Open);
        assert_eq!(derived(&[(Completed, 2), (Skipped, 1)]), FlowState::Completed);
        for bad in [Failed, Cancelled, Expired] {
            assert_eq!(derived(&[(Completed, 2), (bad, 1)]), FlowState::Failed);
        }
        assert_eq!(derived(&[(Failed, 1), (Active, 1), (Delayed, 1)]), FlowState::Running);
        assert_eq!(derived(&[(Completed, 1), (Suspended, 1), (Waiting, 1)]), FlowState::Blocked);
        assert_eq!(derived(&[(Completed, 1), (Waiting, 1)]), FlowState::Open);
    }

    fn edges_among(n: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
        let ends = (0..n, 0..n).prop_filter("distinct ends", |(from, to)| from != to);
        proptest::collection::vec(ends, 0..20)
    }

    /// Whether some node reaches itself, by brute force.
    fn is_cyclic(n: usize, edges: &[(usize, usize)]) -> bool {
        let mut reach = vec![vec![false; n]; n];
        for (from, to) in edges {
            reach[*from][*to] = true;
        }
        for via in 0..n {
            for from in 0..n {
                for to in 0..n {
                    reach[from][to] |= reach[from][via] && reach[via][to];
                }
            }
        }
        (0..n).any(|node| reach[node][node])
    }

    proptest! {
        #[test]
        fn a_graph_has_an_order_exactly_when_it_has_no_cycle(edges in edges_among(7)) {
            match topological_order(7, &edges) {
                None => prop_assert!(is_cyclic(7, &edges)),
                Some(order) => {
                    prop_assert!(!is_cyclic(7, &edges));
                    let mut sorted = order.clone();
                    sorted.sort_unstable();
                    prop_assert_eq!(sorted, (0..7).collect::<Vec<_>>());
                    let place = |node: usize| order.iter().position(|other| *other == node);
                    for (from, to) in edges {
                        prop_assert!(place(from) < place(to));
                    }
                }
            }
        }
    }
}
