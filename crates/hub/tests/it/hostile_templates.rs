//! Hostile chat templates end with an error or a small text, soon and within
//! bounded memory. Each is parsed and rendered on the stack that chats have.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use weightloom_hub::text::{
    ChatContext, ChatError, ChatTemplate, ChatTemplates, GenerationPrompt, Message, Timestamp,
};

/// The slowest case takes a fraction of this on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(5);

const MAX_TEXT_BYTES: usize = 1 << 24;

fn render(source: &str) -> Result<String, ChatError> {
    let messages = [Message::new("user", "Hi"), Message::new("assistant", "Hello")];
    let now = Timestamp::new((2024, 7, 26), (9, 5, 3));
    let context = ChatContext { now, ..ChatContext::default() };
    ChatTemplate::new(source)?.render(&messages, GenerationPrompt::Leave, &context)
}

/// A statement, many times.
fn times(count: usize, statement: &str) -> String {
    repeated(statement, count)
}

/// Doubles `x` in a namespace, many times.
fn looped(start: &str, expression: &str, end: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}) %}}{{% for i in range(90000) %}}{{% set ns.x = {expression} %}}\
         {{% endfor %}}{end}"
    )
}

/// A text, many times, in lines that are not too long.
fn repeated(text: &str, count: usize) -> String {
    (1..=count).flat_map(|number| [text, if number % 100 == 0 { "\n" } else { "" }]).collect()
}

fn nested(open: &str, inner: &str, close: &str, depth: usize) -> String {
    format!("{}{inner}{}", repeated(open, depth), repeated(close, depth))
}

fn expression(inner: &str) -> String {
    format!("{{{{ {inner} }}}}")
}

/// Must end with an error.
fn refused() -> Vec<(&'static str, String)> {
    let text = "{% set x = 'abcdefgh' * 100000 %}";
    let nest = format!("{{% set x = [1] %}}{}", times(60, "{% set x = [x, x] %}"));
    let pairs = format!("{{% set x = {{'a': 1}} %}}{}", times(60, "{% set x = {'a': x, 'b': x} %}"));
    let with = |prefix: &str, rest: &str| format!("{prefix}{rest}");
    let many = "{% for a in range(90000) %}{% for b in range(90000) %}";
    let ends = "{% endfor %}{% endfor %}";
    vec![
        ("doubled by ~", with(text, &times(60, "{% set x = x ~ x %}"))),
        ("doubled by +", with(text, &times(60, "{% set x = x + x %}"))),
        ("doubled by *", with(text, &times(60, "{% set x = x * 2 %}"))),
        ("doubled by join", with(text, &times(60, "{% set x = [x, x] | join %}"))),
        ("doubled by a method join", with(text, &times(60, "{% set x = x.join([x, x]) %}"))),
        ("doubled by replace", with(text, &times(60, "{% set x = x | replace('a', x) %}"))),
        ("doubled by a method replace", with(text, &times(60, "{% set x = x.replace('', x) %}"))),
        ("doubled by format", with(text, &times(60, "{% set x = '%s%s' | format(x, x) %}"))),
        ("doubled by a method format", with(text, &times(60, "{% set x = '{}{}'.format(x, x) %}"))),
        ("doubled by a block", with(text, &times(60, "{% set x %}{{ x }}{{ x }}{% endset %}"))),
        ("doubled by a filter block", with(text, &times(60, "{% set x %}{% filter upper %}{{ x }}{{ x }}{% endfilter %}{% endset %}"))),
        ("doubled by escape", with("{% set x = '&' * 100000 %}", &times(60, "{% set x = (x | string) | e | string | replace('&', '&&') %}"))),
        ("doubled in a loop by ~", looped("'x'", "ns.x ~ ns.x", "")),
        ("doubled in a loop by +", looped("'x'", "ns.x + ns.x", "")),
        ("doubled in a loop by join", looped("'x'", "[ns.x, ns.x] | join('y')", "")),
        ("grown in a loop by ~", looped("'x' * 10000", "ns.x ~ 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'", "")),
        ("indented in a loop", looped("'x'", "ns.x | indent(1000, true)", "")),
        ("lists doubled by +", with("{% set x = [1] %}", &with(&times(60, "{% set x = x + x %}"), "{{ x | length }}"))),
        ("lists doubled by *", with("{% set x = [1] %}", &times(60, "{% set x = x * 2 %}"))),
        ("lists doubled in a loop", looped("[1]", "ns.x + ns.x", "")),
        ("tuples doubled", with("{% set x = (1, 2) %}", &times(60, "{% set x = x + x %}"))),
        ("tuples multiplied", "{{ ((1, 2) * 90000000) | length }}".to_owned()),
        ("lists multiplied", "{{ ([1] * 90000000) | length }}".to_owned()),
        ("a text multiplied", "{{ ('x' * 99000000) | length }}".to_owned()),
        ("a text multiplied beyond all bounds", "{{ 'x' * 9000000000000000000 }}".to_owned()),
        ("many texts", "{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}".to_owned()),
        ("many set texts", looped("[]", "ns.x + ['x' * 100000]", "")),
        ("nested lists written", with(&nest, "{{ x }}")),
        ("nested lists as JSON", with(&nest, "{{ x | tojson }}")),
        ("nested lists as indented JSON", with(&nest, "{{ x | tojson(indent=64) }}")),
        ("nested lists as a string", with(&nest, "{{ x | string | length }}")),
        ("nested lists printed", with(&nest, "{{ x | pprint }}")),
        ("nested lists compared", with(&nest, "{{ x == x }}")),
        ("nested lists ordered", with(&nest, "{{ x < x }}")),
        ("nested lists in themselves", with(&nest, "{{ 2 in [x] }}{{ x in x }}")),
        ("nested lists tested", with(&nest, "{{ x is eq(x) }}")),
        ("nested lists tested for in", with(&nest, "{{ 5 is in(x) }}{{ [x] is in([x]) }}")),
        ("nested lists joined", with(&nest, "{{ x | join }}")),
        ("nested lists joined with ~", with(&nest, "{{ x ~ x }}")),
        ("nested lists sorted", with(&nest, "{{ [x, x] | sort | length }}")),
        ("nested lists made unique", with(&nest, "{{ [x, x] | unique | length }}")),
        ("nested lists grouped", with(&nest, "{{ [x, x] | groupby(0) | length }}")),
        ("nested lists as a key", with(&nest, "{{ {x: 1} }}")),
        ("nested lists looked up", with(&nest, "{% set d = {'a': 1} %}{{ d[x] }}")),
        ("nested lists got", with(&nest, "{% set d = {'a': 1} %}{{ d.get(x) }}")),
        ("nested lists counted", with(&nest, "{{ [x].count(x) }}")),
        ("nested lists formatted", with(&nest, "{{ '%s' | format(x) }}")),
        ("nested lists formatted by a method", with(&nest, "{{ '{}'.format(x) }}")),
        ("nested lists raised", with(&nest, "{{ raise_exception(x) }}")),
        ("nested lists at a minimum", with(&nest, "{{ [x, x] | min }}")),
        ("nested lists summed", with(&nest, "{{ [x, x] | sum(start=[]) | string }}")),
        ("nested lists that changed", with(&nest, "{% for i in [1, 2] %}{{ loop.changed(x) }}{% endfor %}")),
        ("nested lists through map", with(&nest, "{{ [x] | map('string') | list }}")),
        ("nested lists through map to JSON", with(&nest, "{{ [x] | map('tojson') | list }}")),
        ("nested lists selected", with(&nest, "{{ [x] | select('eq', x) | list | length }}")),
        ("nested lists in a list", with(&nest, "{{ [x] | tojson }}")),
        ("nested dicts written", with(&pairs, "{{ x }}")),
        ("nested dicts as JSON", with(&pairs, "{{ x | tojson(indent=4) }}")),
        ("nested dicts compared", with(&pairs, "{{ x == x }}")),
        ("nested dicts by dict()", with("{% set x = 1 %}", &with(&times(60, "{% set x = dict(a=x, b=x) %}"), "{{ x }}"))),
        ("a cyclic namespace", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned()),
        ("a cyclic namespace as JSON", "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns | tojson }}".to_owned()),
        ("namespaces of each other", "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a == b }}".to_owned()),
        ("a namespace in a dict in itself", "{% set ns = namespace() %}{% set ns.x = {'a': ns} %}{{ ns }}".to_owned()),
        ("a namespace unpacked into itself", "{% set ns = namespace() %}{% set ns.x, ns.y = ns, ns %}{{ ns }}".to_owned()),
        ("a macro in a namespace", "{% set ns = namespace() %}{% macro m() %}{{ ns.m() }}{% endmacro %}{% set ns.m = m %}{{ m() }}".to_owned()),
        ("a list nested in a loop", looped("[]", "[ns.x]", "{{ ns.x }}")),
        ("a dict nested in a loop", looped("{}", "{'a': ns.x}", "{{ ns.x }}")),
        ("a reversed list in a loop", looped("[1, 2]", "[ns.x[::-1]]", "{{ ns.x }}")),
        ("a list nested in statements", with("{% set x = [] %}", &with(&times(20_000, "{% set x = [x] %}"), "{{ x }}"))),
        ("deep parentheses", expression(&nested("(", "1", ")", 100_000))),
        ("deep lists", expression(&nested("[", "1", "]", 100_000))),
        ("deep dicts", expression(&nested("{'a':", "1", "}", 100_000))),
        ("deep subscripts", expression(&nested("a[", "1", "]", 100_000))),
        ("deep calls", expression(&nested("range(", "1", ")", 100_000))),
        ("deep not", expression(&nested("not ", "1", "", 200_000))),
        ("deep minus", expression(&nested("-", "1", "", 200_000))),
        ("deep spaced minus", expression(&nested("- ", "1", "", 200_000))),
        ("deep conditions", expression(&nested("1 if 1 else ", "1", "", 60_000))),
        ("deep attributes", expression(&format!("messages{}", repeated(".a", 300_000)))),
        ("deep filters", expression(&format!("1{}", repeated("|string", 100_000)))),
        ("deep tests", expression(&format!("1{}", repeated(" is none", 100_000)))),
        ("deep sums", expression(&format!("1{}", repeated("+1", 300_000)))),
        ("deep powers", expression(&format!("1{}", repeated("**1", 200_000)))),
        ("deep texts", expression(&format!("'a'{}", repeated("~'a'", 200_000)))),
        ("deep and", expression(&format!("1{}", repeated(" and 1", 100_000)))),
        ("deep comparisons", expression(&format!("1{}", repeated(" == 1", 100_000)))),
        ("deep targets", format!("{{% set {} = 1 %}}", nested("(", "a", ")", 100_000))),
        ("deep dotted targets", format!("{{% set a{} = 1 %}}", repeated(".a", 300_000))),
        ("deep if", nested("{% if 1 %}", "x", "{% endif %}", 30_000)),
        ("deep elif", format!("{{% if 0 %}}{}{{% endif %}}", times(60_000, "{% elif 0 %}"))),
        ("deep for", nested("{% for a in [1] %}", "x", "{% endfor %}", 25_000)),
        ("deep with", nested("{% with %}", "x", "{% endwith %}", 30_000)),
        ("deep macros", nested("{% macro m() %}", "x", "{% endmacro %}", 30_000)),
        ("deep filter blocks", nested("{% filter upper %}", "x", "{% endfilter %}", 20_000)),
        ("deep set blocks", nested("{% set x %}", "x", "{% endset %}", 30_000)),
        ("deep call blocks", nested("{% call m() %}", "x", "{% endcall %}", 25_000)),
        ("nested loops", format!("{many}{ends}")),
        ("nested loops with text", format!("{many}text{ends}")),
        ("loops that select nothing", "{% for a in range(90000) %}{% for b in range(90000) if false %}{% endfor %}{% endfor %}".to_owned()),
        ("nested comprehensions", "{% for a in range(90000) %}{{ range(90000) | select('odd') | list | length }}{% endfor %}".to_owned()),
        ("sums in loops", "{% for a in range(90000) %}{% set x = range(90000) | sum %}{% endfor %}".to_owned()),
        ("copies in loops", format!("{text}{{% for a in range(90000) %}}{{% set y = x | upper %}}{{% endfor %}}")),
        ("searches in loops", format!("{text}{{% for a in range(90000) %}}{{% set y = 'z' in x %}}{{% endfor %}}")),
        ("characters in loops", format!("{text}{{% for a in range(90000) %}}{{% set y = x[-1] %}}{{% endfor %}}")),
        ("slices in loops", format!("{text}{{% for a in range(90000) %}}{{% set y = x[::-1] %}}{{% endfor %}}")),
        ("strips in loops", format!("{text}{{% for a in range(90000) %}}{{% set y = x.strip(x) %}}{{% endfor %}}")),
        ("splits in loops", format!("{text}{{% for a in range(90000) %}}{{% set y = x.split('a') %}}{{% endfor %}}")),
        ("dicts in loops", "{% for a in range(90000) %}{% set y = dict(messages[0]) | tojson(indent=8) %}{% for b in range(900) %}{% set z = y ~ y %}{% endfor %}{% endfor %}".to_owned()),
        ("pairs of lists", "{% set x = range(90000) | list %}{{ x | select('in', x) | list | length }}{{ x | reject('in', x) | list }}".to_owned()),
        ("a long attribute", format!("{text}{{{{ ([{{'a': 1}}] * 90000) | map(attribute=x) | list | length }}}}{{{{ ([{{'a': 1}}] * 90000) | sort(attribute=x) | length }}}}")),
        ("sums of texts", "{{ (['x' * 1000] * 60000) | sum(start='') | length }}".to_owned()),
        ("recursive loops", "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}".to_owned()),
        ("recursive macros", "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned()),
        ("macros of each other", "{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}".to_owned()),
        ("doubling macros", format!("{{% macro m0() %}}x{{% endmacro %}}{}{{{{ m60() }}}}", (1..=60).map(|n| format!("{{% macro m{n}() %}}{{{{ m{0}() }}}}{{{{ m{0}() }}}}{{% endmacro %}}", n - 1)).collect::<String>())),
        ("recursive call blocks", "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}".to_owned()),
        ("a huge range", "{{ range(9000000000) | list }}".to_owned()),
        ("a huge indent", "{{ 'a\nb' | indent(9000000000) }}".to_owned()),
        ("a huge named indent", "{{ 'a\nb' | indent(width=9000000000, first=true) }}".to_owned()),
        ("a huge batch", "{{ [1] | batch(9000000000, 0) }}".to_owned()),
        ("a huge slice", "{{ [1] | slice(9000000000) }}".to_owned()),
        ("huge slices through map", "{{ [[1], [1]] | map('slice', 9000000000) | list }}".to_owned()),
        ("a huge width", "{{ '%9000000000d' | format(1) }}".to_owned()),
        ("a huge width from an argument", "{{ '%*d' | format(9000000000, 1) }}".to_owned()),
        ("a huge precision", "{{ '%.9000000000f' | format(1.5) }}".to_owned()),
        ("a huge width of a method", "{{ '{:9000000000}'.format(1) }}".to_owned()),
        ("a huge nested width of a method", "{{ '{:{}}'.format(1, 9000000000) }}".to_owned()),
        ("a huge power", "{{ 10 ** 9000000000 }}".to_owned()),
        ("a huge JSON indent", "{{ messages | tojson(indent='x' * 1000000) }}".to_owned()),
        ("huge JSON separators", "{{ (range(1000) | list) | tojson(separators=['x' * 1000000, ':']) }}".to_owned()),
        ("a huge joiner", "{{ range(90000) | join('x' * 100000) }}".to_owned()),
        ("replacing every character", "{{ ('a' * 100000) | replace('a', 'b' * 100000) | length }}".to_owned()),
        ("replacing nothing", "{{ ('a' * 100000) | replace('', 'b' * 100000) | length }}".to_owned()),
        ("replacing through map", "{{ ['a' * 100000] | map('replace', 'a', 'b' * 100000) | list | length }}".to_owned()),
        ("a date of dates", "{{ strftime_now('%Y' * 9000000) }}".to_owned()),
        ("an overlong template", "x".repeat(2 << 20)),
    ]
}

/// May end with a small text.
fn bounded() -> Vec<(&'static str, String)> {
    vec![
        ("a huge rounding", "{{ 1.5 | round(2000000000) }}{{ 15 | round(-2000000000) }}".to_owned()),
        ("a long line", format!("{{{{ '{}' | length }}}}", "é".repeat(400_000))),
        ("many lines", "\n".repeat(1 << 20)),
        ("many comments", times(100_000, "{# x #}")),
        ("many tags", times(60_000, "{{ 1 }}")),
        (
            "many closures",
            (0..10_000)
                .map(|n| format!("{{% macro m{n}() %}}{{{{ m{} }}}}{{% endmacro %}}", n.max(1) - 1))
                .collect(),
        ),
        ("many captured", times(10_000, "{% macro m() %}{{ m }}{% endmacro %}{% set x = m %}")),
        ("unclosed tags", times(200_000, "{{ ")),
        ("unclosed blocks", times(100_000, "{% if 1 %}")),
        ("unclosed comments", times(200_000, "{# ")),
        ("generation tags", times(30_000, "{% generation %}")),
        ("unclosed texts", times(200_000, "{{ '")),
        ("raw blocks", times(30_000, "{% raw %}{{{% endraw %}")),
        ("a wide list", expression(&format!("[{}]|length", repeated("1,", 1900)))),
        (
            "combining characters",
            format!("{{{{ 'a{}' | title | upper | capitalize | length }}}}", repeated("\u{301}", 100_000)),
        ),
        ("expanding characters", "{{ ('ß' * 1000000) | upper | length }}".to_owned()),
        ("a list of lists", "{{ ([[]] * 90000) | tojson | length }}".to_owned()),
        ("a missing method", "{{ 'x'.center(9000000000) }}".to_owned()),
        ("a debug dump", "{{ debug() }}".to_owned()),
        ("many not", expression(&nested("not ", "1", "", 4000))),
        ("many minus", expression(&nested("-", "1", "", 4000))),
        ("many conditions", expression(&nested("1 if 1 else ", "1", "", 1000))),
        ("many attributes", expression(&format!("messages{}", repeated("[0]", 1300)))),
        ("many filters", expression(&format!("1{}", repeated("|string", 2000)))),
        ("many tests", expression(&format!("1{}", repeated(" is none", 2000)))),
        ("many sums", expression(&format!("messages|length{}", repeated("+1", 2000)))),
        ("many powers", expression(&format!("1{}", repeated("**1", 2000)))),
        ("many comparisons", expression(&format!("1{}", repeated(" == 1", 2000)))),
        ("many elif", format!("{{% if 0 %}}{}{{% endif %}}", times(1000, "{% elif 0 %}"))),
        ("deep but allowed", expression(&nested("(", "1", ")", 30))),
    ]
}

#[test]
fn hostile_templates_end_soon() {
    let refused = refused();
    assert!(refused.len() >= 120, "{}", refused.len());
    let mut failures = Vec::new();
    for (expected, cases) in [("an error", refused), ("a small text", bounded())] {
        for (name, source) in cases {
            let start = Instant::now();
            let result = render(&source);
            let took = start.elapsed();
            let short = result.as_ref().map(String::len);
            let wrong = match &result {
                Ok(text) => expected == "an error" || text.len() > MAX_TEXT_BYTES,
                Err(ChatError::Panicked | ChatError::Thread { .. }) => true,
                // A mistake of ours, or of this table.
                Err(ChatError::Failed { message, .. }) => {
                    expected == "an error" && message.starts_with("unknown")
                }
                Err(_) => false,
            };
            if wrong || took > TIME_LIMIT {
                failures.push(format!("{name}: {short:?} after {took:?}, expected {expected}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Most commands need no template; a bad one must not stop them.
#[test]
fn templates_are_parsed_when_they_are_rendered() {
    let folder = tempfile::tempdir().unwrap();
    let deep = expression(&nested("not ", "1", "", 200_000));
    std::fs::write(folder.path().join("chat_template.jinja"), deep).unwrap();
    let templates = ChatTemplates::from_folder(folder.path()).unwrap();
    let context = ChatContext::default();
    let rendered = templates.pick(&context).unwrap().render(&[], GenerationPrompt::Leave, &context);
    assert!(matches!(rendered, Err(ChatError::LongTag { .. })), "{rendered:?}");
}

/// A server renders a template for every request. Parsing this one takes far
/// longer than rendering it.
#[test]
fn templates_are_parsed_once() {
    let unused = repeated("{{ messages[0].content | trim }}", 20_000);
    let source = format!("{{% if tools %}}{unused}{{% endif %}}{{{{ messages[0].content }}}}");
    let start = Instant::now();
    let template = ChatTemplate::new(&source).unwrap();
    let parsing = start.elapsed();
    let start = Instant::now();
    for number in 0..50 {
        let text = format!("Hi {number}");
        let messages = [Message::new("user", text.as_str())];
        let rendered = template.render(&messages, GenerationPrompt::Leave, &ChatContext::default());
        assert_eq!(rendered.unwrap(), text);
    }
    let rendering = start.elapsed();
    assert!(rendering < 10 * parsing, "50 conversations took {rendering:?}, parsing {parsing:?}");
}

#[test]
fn conversations_are_rendered_at_the_same_time() {
    let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (template, start) = (&template, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..20 {
                    let text = format!("{number} ").repeat(1000);
                    let messages = [Message::new("user", text.as_str())];
                    let context = ChatContext::default();
                    assert_eq!(template.render(&messages, GenerationPrompt::Leave, &context).unwrap(), text);
                }
            });
        }
    });
    // An error is an answer like any other.
    let stops = ChatTemplate::new("{% if messages %}{{ raise_exception('no') }}{% endif %}x").unwrap();
    let context = ChatContext::default();
    let refused = stops.render(&[Message::new("user", "Hi")], GenerationPrompt::Leave, &context);
    assert!(matches!(refused, Err(ChatError::Refused { .. })), "{refused:?}");
    assert_eq!(stops.render(&[], GenerationPrompt::Leave, &context).unwrap(), "x");
}

/// A conversation of several megabytes is not an attack.
#[test]
fn long_conversations_are_rendered() {
    let source = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let long: Vec<Message> = (0..2000).map(|_| Message::new("user", "word ".repeat(800))).collect();
    let text = template.render(&long, GenerationPrompt::Leave, &ChatContext::default()).unwrap();
    assert!(text.len() > 7_000_000);
    let short: Vec<Message> = (0..20_000).map(|_| Message::new("user", "word")).collect();
    template.render(&short, GenerationPrompt::Leave, &ChatContext::default()).unwrap();
}
