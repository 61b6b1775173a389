//! Search.

use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::inspection::{SearchArgs, SearchCursor, TagPair};
use ff_core::error::ValidationKind;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::state::PublicState;

use crate::cases;
use crate::expect::invalid;
use crate::world::World;

cases!["inspection::search":
    everything_is_found_newest_first,
    each_filter_narrows_the_search,
    filters_hold_together,
    a_search_follows_the_state,
    a_search_follows_the_tags,
    pages_fit_together_without_repetition,
    a_rare_match_is_found_behind_many_others,
    a_search_without_limit_is_empty,
    a_cursor_of_another_search_is_refused,
];

async fn search(world: &World, args: SearchArgs) -> Vec<ExecutionId> {
    let page = world.backend.search_executions(args).await.unwrap();
    assert_eq!(page.next_cursor, None);
    page.entries.into_iter().map(|entry| entry.execution_id).collect()
}

async fn everything_is_found_newest_first(world: World) {
    assert!(search(&world, SearchArgs::default()).await.is_empty());
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.create().await);
        world.advance(1);
    }
    ids.reverse();
    assert_eq!(search(&world, SearchArgs::default()).await, ids);
    let page = world.backend.search_executions(SearchArgs::default()).await.unwrap();
    let entry = &page.entries[0];
    assert_eq!((&entry.namespace, &entry.lane_id), (&world.namespace(), &world.lane()));
    assert_eq!((entry.execution_kind.as_str(), entry.public_state), ("task", PublicState::Waiting));
    assert_eq!(entry.created_at.0, world.now().0 - 1);
}

fn tag(value: &str) -> TagPair {
    TagPair { key: "app.team".into(), value: value.into() }
}

async fn each_filter_narrows_the_search(world: World) {
    let plain = world.create().await;
    world.advance(10);
    let other = world
        .submit(CreateExecutionArgs {
            namespace: Namespace::new("other").unwrap(),
            lane_id: LaneId::new("gpu").unwrap(),
            execution_kind: "train".into(),
            tags: [("app.team".to_owned(), "blue".to_owned())].into(),
            delay_until: Some(world.now().plus(1000)),
            ..world.submission()
        })
        .await;
    let any = SearchArgs::default();
    let narrow = [
        (SearchArgs { namespace: Some(world.namespace()), ..any.clone() }, plain),
        (SearchArgs { lane_id: Some(world.lane()), ..any.clone() }, plain),
        (SearchArgs { lane_id: Some(LaneId::new("gpu").unwrap()), ..any.clone() }, other),
        (SearchArgs { kind: Some("train".into()), ..any.clone() }, other),
        (SearchArgs { public_state: Some(PublicState::Delayed), ..any.clone() }, other),
        (SearchArgs { public_state: Some(PublicState::Waiting), ..any.clone() }, plain),
        (SearchArgs { tag: Some(tag("blue")), ..any.clone() }, other),
        (SearchArgs { created_from: Some(world.now()), ..any.clone() }, other),
        (SearchArgs { created_to: Some(world.now()), ..any.clone() }, plain),
    ];
    for (args, expected) in narrow {
        assert_eq!(search(&world, args.clone()).await, [expected], "{args:?}");
    }
    let nothing = [
        SearchArgs { tag: Some(tag("red")), ..any.clone() },
        SearchArgs { kind: Some("missing".into()), ..any.clone() },
        SearchArgs { created_from: Some(world.now().plus(1)), ..any.clone() },
        SearchArgs { created_from: Some(world.now()), created_to: Some(world.now()), ..any },
    ];
    for args in nothing {
        assert!(search(&world, args.clone()).await.is_empty(), "{args:?}");
    }
}

async fn filters_hold_together(world: World) {
    let id = world
        .submit(CreateExecutionArgs { tags: [("app.team".to_owned(), "blue".to_owned())].into(), ..world.submission() })
        .await;
    let all = SearchArgs {
        namespace: Some(world.namespace()),
        lane_id: Some(world.lane()),
        kind: Some("task".into()),
        public_state: Some(PublicState::Waiting),
        tag: Some(tag("blue")),
        created_from: Some(world.now()),
        created_to: Some(world.now().plus(1)),
        ..SearchArgs::default()
    };
    assert_eq!(search(&world, all.clone()).await, [id]);
    assert!(search(&world, SearchArgs { kind: Some("other".into()), ..all.clone() }).await.is_empty());
    assert!(search(&world, SearchArgs { lane_id: Some(LaneId::new("gpu").unwrap()), ..all.clone() }).await.is_empty());
    let elsewhere = Some(Namespace::new("other").unwrap());
    assert!(search(&world, SearchArgs { namespace: elsewhere, ..all }).await.is_empty());
}

async fn a_search_follows_the_state(world: World) {
    let (id, handle) = world.claim_one().await;
    let by_lane =
        |state| SearchArgs { lane_id: Some(world.lane()), public_state: Some(state), ..SearchArgs::default() };
    assert_eq!(search(&world, by_lane(PublicState::Active)).await, [id]);
    world.backend.complete(&handle, None).await.unwrap();
    assert!(search(&world, by_lane(PublicState::Active)).await.is_empty());
    assert_eq!(search(&world, by_lane(PublicState::Completed)).await, [id]);
}

async fn a_search_follows_the_tags(world: World) {
    let id = world.create().await;
    let by_tag = |value| SearchArgs { tag: Some(tag(value)), ..SearchArgs::default() };
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    assert_eq!(search(&world, by_tag("blue")).await, [id]);
    world.backend.set_execution_tag(id, "app.team", "red").await.unwrap();
    assert!(search(&world, by_tag("blue")).await.is_empty());
    assert_eq!(search(&world, by_tag("red")).await, [id]);
}

async fn pages_fit_together_without_repetition(world: World) {
    let mut expected = Vec::new();
    for n in 0..7 {
        let id = world.create().await;
        if n % 2 == 0 {
            world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
            expected.push(id);
        }
        world.advance(u64::from(n % 3 == 0));
    }
    for args in [SearchArgs::default(), SearchArgs { tag: Some(tag("blue")), ..SearchArgs::default() }] {
        let whole: Vec<_> = search(&world, args.clone()).await;
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            let page = SearchArgs { cursor, limit: 2, ..args.clone() };
            let page = world.backend.search_executions(page).await.unwrap();
            found.extend(page.entries.into_iter().map(|entry| entry.execution_id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, whole);
    }
}

async fn a_rare_match_is_found_behind_many_others(world: World) {
    let rare = CreateExecutionArgs { execution_kind: "rare".into(), ..world.submission() };
    let rare = world.submit(rare).await;
    for _ in 0..1200 {
        world.advance(1);
        world.create().await;
    }
    let args = SearchArgs { lane_id: Some(world.lane()), kind: Some("rare".into()), ..SearchArgs::default() };
    let short = world.backend.search_executions(args.clone()).await.unwrap();
    assert!(short.entries.is_empty(), "the budget ends before the match");
    let cursor = short.next_cursor;
    assert!(cursor.is_some(), "a short page says that more follows");
    assert_eq!(search(&world, SearchArgs { cursor, ..args }).await, [rare]);
}

async fn a_search_without_limit_is_empty(world: World) {
    world.create().await;
    assert!(search(&world, SearchArgs { limit: 0, ..SearchArgs::default() }).await.is_empty());
}

async fn a_cursor_of_another_search_is_refused(world: World) {
    for _ in 0..3 {
        world.create().await;
    }
    let one = SearchArgs { limit: 1, ..SearchArgs::default() };
    let cursor = world.backend.search_executions(one.clone()).await.unwrap().next_cursor.expect("more follows");
    let other = SearchArgs { kind: Some("task".into()), cursor: Some(cursor.clone()), ..one.clone() };
    invalid(world.backend.search_executions(other).await, ValidationKind::InvalidInput);
    let tampered =
        ["", "x", "a.b.c", "..", &cursor.0[1..], &cursor.0[..cursor.0.len() - 1], &format!("{}00", cursor.0)];
    for text in tampered {
        let args = SearchArgs { cursor: Some(SearchCursor(text.into())), ..one.clone() };
        invalid(world.backend.search_executions(args).await, ValidationKind::InvalidInput);
    }
    let bad_tag = SearchArgs { tag: Some(TagPair { key: "Bad".into(), value: String::new() }), ..one };
    invalid(world.backend.search_executions(bad_tag).await, ValidationKind::InvalidInput);
}
