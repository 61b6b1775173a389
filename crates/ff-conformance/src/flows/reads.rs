//! Showing flows: description, listing, tags, summaries.

use std::collections::BTreeMap;

use ff_core::backend::flows::{
    CancelFlowPolicy, CancelFlowWait, CreateFlowArgs, FlowProjection, FlowStatus, ListFlowsPage,
};
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::FlowId;
use ff_core::partition::{Partition, PartitionKey};
use ff_core::state::{FlowState, PublicState};

use super::kit::{self, edges, nodes};
use crate::{Damage, World, cases, expect};

cases!["flows":
    a_missing_flow_is_described_as_none,
    a_damaged_flow_is_reported,
    a_tag_is_set_read_and_shown,
    setting_the_same_tag_again_changes_nothing,
    bad_tags_are_refused_before_the_flow_is_looked_for,
    a_summary_counts_every_member,
    a_summary_says_what_the_members_amount_to,
    a_summary_follows_its_members,
    a_flow_without_members_has_no_summary,
    a_damaged_member_does_not_spoil_a_summary,
    flows_are_listed_in_id_order_page_by_page,
    a_finished_flow_stays_listed,
    a_damaged_flow_does_not_hide_the_others,
    a_listing_needs_a_partition_of_flows,
];

async fn a_missing_flow_is_described_as_none(world: World) {
    assert_eq!(world.backend.describe_flow(FlowId::from_uuid(world.uuid())).await.unwrap(), None);
}

async fn a_damaged_flow_is_reported(world: World) {
    let flow = kit::flow(&world).await;
    world.damage(Damage::Flow(flow)).await;
    expect::invalid(world.backend.describe_flow(flow).await, ValidationKind::Corruption);
}

async fn a_tag_is_set_read_and_shown(world: World) {
    let flow = kit::flow(&world).await;
    assert_eq!(world.backend.get_flow_tag(flow, "team.name").await.unwrap(), None);
    world.advance(5);
    world.backend.set_flow_tag(flow, "team.name", "blue ✓\n").await.unwrap();
    assert_eq!(world.backend.get_flow_tag(flow, "team.name").await.unwrap().as_deref(), Some("blue ✓\n"));
    world.backend.set_flow_tag(flow, "team.name", "green").await.unwrap();
    world.backend.set_flow_tag(flow, "team.size", "3").await.unwrap();
    let described = world.backend.describe_flow(flow).await.unwrap().unwrap();
    let pairs = [("team.name".to_owned(), "green".to_owned()), ("team.size".to_owned(), "3".to_owned())];
    assert_eq!(described.tags, BTreeMap::from(pairs));
    assert_eq!(described.last_mutation_at, world.now());
    assert_eq!(described.graph_revision, 0);
}

async fn setting_the_same_tag_again_changes_nothing(world: World) {
    let flow = kit::flow(&world).await;
    world.backend.set_flow_tag(flow, "team.name", "blue").await.unwrap();
    let before = world.backend.describe_flow(flow).await.unwrap();
    world.advance(5);
    world.backend.set_flow_tag(flow, "team.name", "blue").await.unwrap();
    assert_eq!(world.backend.describe_flow(flow).await.unwrap(), before);
}

async fn bad_tags_are_refused_before_the_flow_is_looked_for(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    for key in ["", "name", "Team.name", "team.", "te-am.name"] {
        expect::invalid(world.backend.set_flow_tag(missing, key, "x").await, ValidationKind::InvalidInput);
        expect::invalid(world.backend.get_flow_tag(missing, key).await, ValidationKind::InvalidInput);
    }
    let long = "x".repeat(4097);
    expect::invalid(world.backend.set_flow_tag(missing, "team.name", &long).await, ValidationKind::InvalidInput);
    expect::not_found(world.backend.set_flow_tag(missing, "team.name", "x").await, Entity::Flow);
    assert_eq!(world.backend.get_flow_tag(missing, "team.name").await.unwrap(), None);
}

async fn summary(world: &World, flow: FlowId) -> FlowProjection {
    assert!(world.backend.project_flow_summary(flow, world.now()).await.unwrap());
    world.backend.describe_flow(flow).await.unwrap().unwrap().summary.expect("a summary was written")
}

async fn a_summary_counts_every_member(world: World) {
    let graph = kit::submit(&world, nodes(&["a", "b", "c", "d"]), edges(&[("c", "d")])).await;
    kit::complete(&world, "a").await;
    kit::claim_now(&world, "b").await;
    let found = summary(&world, graph.flow).await;
    assert_eq!((found.flow_id, found.total, found.sampled), (graph.flow, 4, 4));
    assert_eq!(found.projected_at, world.now());
    use PublicState::{Active, Completed, Waiting, WaitingChildren};
    assert_eq!(found.counts, BTreeMap::from([(Waiting, 1), (WaitingChildren, 1), (Active, 1), (Completed, 1)]));
}

async fn a_summary_says_what_the_members_amount_to(world: World) {
    let graph = kit::submit(&world, nodes(&["a", "b"]), edges(&[("a", "b")])).await;
    assert_eq!(summary(&world, graph.flow).await.derived_state, FlowState::Blocked);
    let handle = kit::claim_now(&world, "a").await;
    assert_eq!(summary(&world, graph.flow).await.derived_state, FlowState::Running);
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(summary(&world, graph.flow).await.derived_state, FlowState::Open);
    kit::complete(&world, "b").await;
    assert_eq!(summary(&world, graph.flow).await.derived_state, FlowState::Completed);
    let state = world.backend.describe_flow(graph.flow).await.unwrap().unwrap().public_flow_state;
    assert_eq!(state, FlowState::Open);

    let bad = kit::submit(&world, nodes(&["c", "d"]), edges(&[("c", "d")])).await;
    kit::fail(&world, "c").await;
    let found = summary(&world, bad.flow).await;
    assert_eq!(found.derived_state, FlowState::Failed);
    assert_eq!(found.counts, BTreeMap::from([(PublicState::Failed, 1), (PublicState::Skipped, 1)]));
}

async fn a_summary_follows_its_members(world: World) {
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    assert_eq!(world.backend.describe_flow(graph.flow).await.unwrap().unwrap().summary, None);
    world.pass(1_000).await;
    let described = world.backend.describe_flow(graph.flow).await.unwrap().unwrap();
    assert_eq!(described.summary.unwrap().derived_state, FlowState::Open);
    kit::complete(&world, "a").await;
    world.pass(1_000).await;
    let described = world.backend.describe_flow(graph.flow).await.unwrap().unwrap();
    assert_eq!(described.summary.unwrap().derived_state, FlowState::Completed);
}

async fn a_flow_without_members_has_no_summary(world: World) {
    let flow = kit::flow(&world).await;
    assert!(!world.backend.project_flow_summary(flow, world.now()).await.unwrap());
    assert_eq!(world.backend.describe_flow(flow).await.unwrap().unwrap().summary, None);
    let missing = FlowId::from_uuid(world.uuid());
    assert!(!world.backend.project_flow_summary(missing, world.now()).await.unwrap());
}

async fn a_damaged_member_does_not_spoil_a_summary(world: World) {
    let graph = kit::submit(&world, nodes(&["a", "b", "c"]), Vec::new()).await;
    world.damage(Damage::Execution(graph.id("b"))).await;
    let found = summary(&world, graph.flow).await;
    assert_eq!((found.total, found.sampled), (3, 2));
    assert_eq!(found.counts, BTreeMap::from([(PublicState::Waiting, 2)]));
}

/// Flows that share one partition.
async fn neighbours(world: &World, count: usize) -> (PartitionKey, Vec<FlowId>) {
    let mut flows = vec![kit::flow(world).await];
    let home = world.member_id(flows[0]).partition();
    while flows.len() < count {
        let flow_id = FlowId::from_uuid(world.uuid());
        if world.member_id(flow_id).partition() == home {
            let args = CreateFlowArgs { flow_id, flow_kind: "pipeline".to_owned(), namespace: world.namespace() };
            world.backend.create_flow(args).await.unwrap();
            flows.push(flow_id);
        }
    }
    flows.sort_unstable();
    (PartitionKey::from(home), flows)
}

fn ids(page: &ListFlowsPage) -> Vec<FlowId> {
    page.flows.iter().map(|flow| flow.flow_id).collect()
}

async fn flows_are_listed_in_id_order_page_by_page(world: World) {
    let (home, flows) = neighbours(&world, 3).await;
    let first = world.backend.list_flows(&home, None, 2).await.unwrap();
    assert_eq!((ids(&first), first.next_cursor), (flows[..2].to_vec(), Some(flows[1])));
    let second = world.backend.list_flows(&home, first.next_cursor, 2).await.unwrap();
    assert_eq!((ids(&second), second.next_cursor), (flows[2..].to_vec(), None));
    assert!(second.flows.iter().all(|flow| flow.status == FlowStatus::Active && flow.created_at == world.now()));
    let none = world.backend.list_flows(&home, None, 0).await.unwrap();
    assert_eq!(none, ListFlowsPage::default());
    let beyond = world.backend.list_flows(&home, flows.last().copied(), 10).await.unwrap();
    assert_eq!(beyond, ListFlowsPage::default());
}

async fn a_finished_flow_stays_listed(world: World) {
    let status = async |flow: FlowId| {
        let home = PartitionKey::from(world.member_id(flow).partition());
        let page = world.backend.list_flows(&home, None, 1000).await.unwrap();
        page.flows.into_iter().find(|found| found.flow_id == flow).expect("the flow is listed").status
    };
    let good = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    let bad = kit::submit(&world, nodes(&["b"]), Vec::new()).await;
    let stopped = kit::submit(&world, nodes(&["c"]), Vec::new()).await;
    kit::complete(&world, "a").await;
    kit::fail(&world, "b").await;
    let wait = CancelFlowWait::WaitIndefinite {};
    world.backend.cancel_flow(stopped.flow, CancelFlowPolicy::CancelAll, wait).await.unwrap();
    world.pass(1_000).await;
    assert_eq!(status(good.flow).await, FlowStatus::Completed);
    assert_eq!(status(bad.flow).await, FlowStatus::Failed);
    assert_eq!(status(stopped.flow).await, FlowStatus::Cancelled);
}

async fn a_damaged_flow_does_not_hide_the_others(world: World) {
    let (home, flows) = neighbours(&world, 3).await;
    world.damage(Damage::Flow(flows[1])).await;
    let page = world.backend.list_flows(&home, None, 10).await.unwrap();
    assert_eq!(ids(&page), flows);
    let statuses: Vec<_> = page.flows.iter().map(|flow| flow.status).collect();
    assert_eq!(statuses, [FlowStatus::Active, FlowStatus::Unknown, FlowStatus::Active]);
}

async fn a_listing_needs_a_partition_of_flows(world: World) {
    for key in ["", "fp:1", "{x:1}", "{fp:256}", "{b:1}", "{g:0}"] {
        let answer = world.backend.list_flows(&PartitionKey(key.to_owned()), None, 10).await;
        expect::invalid(answer, ValidationKind::InvalidInput);
    }
    let empty = PartitionKey::from(Partition::flow(17));
    assert_eq!(world.backend.list_flows(&empty, None, 10).await.unwrap(), ListFlowsPage::default());
}
