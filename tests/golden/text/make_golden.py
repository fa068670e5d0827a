"""Makes golden.json: ids of texts and rendered conversations, by the Python encoder of the nano model's world.

    python3 make_golden.py WORLD_FOLDER V4_TOKENIZER_JSON > golden.json

WORLD_FOLDER holds tok.py, chat.py and tokenizer.json. Needs Python 3.9+ and `regex`.
"""
import json
import os
import random
import sys
import tempfile

world, v4_path = sys.argv[1:]
sys.path.insert(0, world)
import chat  # noqa: E402
from tok import Tokenizer  # noqa: E402

plain_tool_calls = chat.tool_calls


def tool_calls(calls):
    """chat.py writes no line for the arguments of a call that has none; the released encoder keeps their line end."""
    return plain_tool_calls(calls).replace(f'">\n</{chat.DSML} invoke>', f'">\n\n</{chat.DSML} invoke>')


chat.tool_calls = tool_calls

rng = random.Random(41)

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "a", "é", "Hello, world! 123\nsecond line", "你好，世界！ Καλημέρα κόσμε 🌍", "question",
    "reason", "answer", " calls", " invoke", " parameter", "</", "don't I'LL x_y ::foo 3.14159 １２３ ½ ²",
    "日本語テスト カタカナ 한국어", "  a\t\tb\r\n\r\n c", "The quick brown fox jumps over the lazy dog.", "x" * 300, "ab" * 200,
    " " * 50 + "end", "\n" * 40, "\t \n \t\n  x", "1234567890123", "١٢٣٤٥ ೧೨೩ Ⅷ ⅔", "a\u0301e\u0308 n\u0303o",
    "zero\u200bwidth\ufeffbom\u00a0nbsp\u0085nel\u3000wide\u2028line\u1680ogham", "mongolian\u180evowel \u180e x",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 ☕️ !", "Ünïcödé ſtraße İstanbul ΣΑΣ", "مرحبا بالعالم שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2.5e-3; }  // loop", "def f(x):\n    return {'a': [x, None]}\n\n\nprint(f(1))\n",
    '{"k": [1, 2.0, true, null], "s": "q\\"uote"}', "<tool_result>18 C</tool_result>\n\nNext", "http://example.org/?q=a+b&c=%20#x",
    "C:\\Users\\name\\file.txt", "$100 + €20 = ¥?", "a--b __init__ ~~x~~ **y** `z`", "...!!!???", "!?\r\n\r\nx", "…—–‘’“”«»",
    "∑∫√≤≥≠ ©®™ °", "A.B.C. e.g. i.e.", "word\u00adsoft", "tab\tseparated\tvalues\n1\t2\t3\n", "\x00\x01\x02\x7f", "\ue000\uf8ff private",
    "\U0010ffff\ufffe nonchar", "naïve café résumé", "MixedCASE camelCase snake_case kebab-case", "I've you're we'll they'd it's",
    "汉字かなカナ混在テスト一二三", "한글 자모 ㄱㄴㄷ", "100,000,000.00", "2024-01-31T23:59:59Z", " leading and trailing ",
    "a\u0300\u0301\u0302\u0303 stacked", "  \n  \n\n   x   \n",
]
WITH_LITERALS = [
    "<｜User｜>Hi<｜Assistant｜></think>", "<think>a</think>b", "x｜DSML｜y", "<｜User", "<｜User｜", "｜DSML", "<<｜User｜>>",
    "<｜begin▁of▁sentence｜><｜end▁of▁sentence｜><｜▁pad▁｜>", "a<｜latest_reminder｜>b<｜action｜>c", "</think></think>",
    "<|EOT|> <｜System｜>x\n\n<｜User｜>\n\ny",
]
BROKEN = [b"\xff", b"\x80abc", b"abc\xc3", b"\xe4\xbd", b"\xe4\xbd\xa0\xe4\xbd", b"a\xffb\xfe\xfdc d", b"\xf0\x9f\x8c", b"\xc0\xaf",
          b"\xed\xa0\x80x", b"\xf4\x90\x80\x80", b" \xff \n\xff1\xff", bytes(range(256)), "你".encode() + b"\xe5" + "好".encode(),
          b"\xff\n\xff\r\n", rng.randbytes(200)]


def pieces_of(tok):
    out = []
    for text in TEXTS + WITH_LITERALS:
        for specials in (False, True):
            ids = tok.encode(text, specials)
            if specials and ids == tok.encode(text, False):
                continue
            out.append({"text": text, "specials": specials, "ids": ids})
    out += [{"hex": data.hex(), "specials": False, "ids": tok.encode(data, False)} for data in BROKEN]
    return out


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
PRICE = {"name": "shop::get_price", "description": "Preis in € 价格", "parameters": {"type": "object", "properties": {}}, "strict": True,
         "limits": [0, -1, 2.5, 1e-05, None, False], "text": "\"quoted\"\\ \n\t\u0001/é"}
SCHEMA = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "number"}}}}


def user(text="Hi", **more): return {"role": "user", "content": text, **more}
def system(text="You are helpful.", **more): return {"role": "system", "content": text, **more}
def assistant(text="Hello!", **more): return {"role": "assistant", "content": text, **more}
def developer(text="Be brief.", **more): return {"role": "developer", "content": text, **more}
def reminder(text="It is Monday."): return {"role": "latest_reminder", "content": text}
def tool(text, call=None): return {"role": "tool", "content": text, **({"tool_call_id": call} if call else {})}
def call(name, number, **arguments): return {"id": f"call_{number}", "name": name, "arguments": arguments}


TWO_CALLS = [call("get_weather", 0, city="Paris", days=3), call("get_weather", 1, city="Köln", extra=[1, {"x": None}], flag=True)]
FIXED = [
    ([user()], {}), ([system(), user()], {}), ([user()], {"thinking": True}), ([system(), user()], {"thinking": True, "effort": 100}),
    ([system(), user()], {"thinking": True, "effort": 1}), ([user(), assistant(), user("Bye")], {}), ([user("")], {}),
    ([user(), assistant(reasoning="R."), user("Bye")], {"thinking": True}),
    ([user(), assistant(reasoning="R."), user("Bye")], {"thinking": True, "drop_thinking": False}),
    ([user(), assistant(reasoning="R.")], {"thinking": True}), ([user(), assistant("")], {"thinking": True}),
    ([user(), assistant("Hel", reasoning="R.")], {"thinking": True, "open_turn": True}), ([user(), assistant("Hel")], {"open_turn": True}),
    ([system("", tools=[WEATHER]), user("Weather in Paris?")], {"thinking": True}),
    ([system(tools=[WEATHER, PRICE]), user("Weather?")], {}), ([system(response_format=SCHEMA), user()], {}),
    ([system(tools=[PRICE], response_format=SCHEMA), user()], {"thinking": True}),
    ([system(tools=[WEATHER]), user("Both?"), assistant("", tool_calls=TWO_CALLS, reasoning="Two."), tool("B", "call_1"), tool("A", "call_0")],
     {"thinking": True}),
    ([system(tools=[WEATHER]), user("Both?"), assistant("I look.", tool_calls=TWO_CALLS), tool("B", "call_1"), user("and?"),
      tool("A", "call_0"), user("now")], {}),
    ([user(), assistant("", tool_calls=TWO_CALLS), tool("C", "call_9"), tool("B", "call_1"), tool("D"), tool("A", "call_0"), assistant("Done.")], {}),
    ([user(), assistant("", tool_calls=[call("now", 0)]), tool("12:00", "call_0")], {}),
    ([user("a"), user("b"), user("c")], {}), ([user("a", task="query"), user("b")], {}), ([user("a"), user("b", task="title")], {}),
    ([user("a", task="action")], {"thinking": True}), ([user("a", task="action")], {}),
    ([user("a", task="query"), assistant("q", reasoning="R."), user("b")], {"thinking": True, "drop_thinking": False}),
    ([user("a", task="authority"), assistant("q")], {"thinking": True}), ([user("a", task="domain"), assistant("q"), user("b", task="read_url")], {}),
    ([system(), developer(), user(), assistant(reasoning="R."), developer("Again."), user("Bye")], {"thinking": True}),
    ([system(), developer(), user(), assistant(reasoning="R."), developer("Again."), user("Bye")], {"thinking": True, "drop_thinking": False}),
    ([developer(tools=[WEATHER], response_format=SCHEMA)], {"thinking": True}), ([developer(), assistant(reasoning="R."), user()], {"thinking": True}),
    ([system(), user(), system("Later."), assistant("x", reasoning="R.")], {"thinking": True}), ([user(), system("Later.")], {}),
    ([user(), reminder(), assistant("x"), user("b"), reminder()], {}), ([user(), reminder(), assistant("x", reasoning="R.")], {"thinking": True}),
    ([assistant("First."), user()], {"thinking": True}), ([system()], {}), ([system()], {"thinking": True}), ([assistant("a"), assistant("b")], {}),
    ([user("你好 🌍\n\n"), assistant(" \n x"), user("\n")], {}), ([user("a", tools=[WEATHER]), assistant(reasoning="R."), user("b")], {"thinking": True}),
]


def random_conversation():
    words = ["Hi", "What is 2 + 2?", "  spaced  ", "naïve\n", "你好", "", "x\r\n\r\ny", "Tom's age is 19.", "\n\n", "a: {}"]
    messages = [system(rng.choice(words))] if rng.random() < 0.5 else []
    if messages and rng.random() < 0.3:
        messages[0]["tools"] = [WEATHER]
    for _ in range(rng.randrange(1, 8)):
        kind = rng.random()
        if kind < 0.4:
            messages.append(user(rng.choice(words)))
        elif kind < 0.75:
            messages.append(assistant(rng.choice(words), reasoning=rng.choice(words)))
            if rng.random() < 0.3:
                messages[-1]["tool_calls"] = rng.sample(TWO_CALLS, rng.randrange(1, 3))
                messages += [tool(rng.choice(words), f"call_{n}") for n in rng.sample(range(3), 2)]
        elif kind < 0.82:
            messages.append(developer(rng.choice(words)))
        elif kind < 0.9:
            messages.append(reminder(rng.choice(words)))
        elif kind < 0.95 and messages:
            messages.append(system(rng.choice(words)))
        else:
            messages.append(user(rng.choice(words), task=rng.choice(["action", "query", "authority", "domain", "title", "read_url"])))
    options = {"thinking": rng.random() < 0.6, "effort": rng.randrange(1, 101), "drop_thinking": rng.random() < 0.5}
    if messages and messages[-1]["role"] == "assistant":
        options["open_turn"] = rng.random() < 0.5
    return messages or [user()], options


def conversations():
    for messages, options in FIXED + [random_conversation() for _ in range(60)]:
        request = {"messages": messages, **{k: v for k, v in options.items() if k != "thinking"},
                   "mode": "thinking" if options.get("thinking") else "chat"}
        yield request, chat.render(messages, **options)


def main():
    nano = Tokenizer(os.path.join(world, "tokenizer.json"))
    with open(v4_path, encoding="utf-8") as f:
        spec = json.load(f)
    for token in spec["added_tokens"]:  # the two literals that V4.1 has and V4 has not
        token["content"] = {128799: chat.SYSTEM, 129264: "<｜deepseek_image｜>"}.get(token["id"], token["content"])
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
        json.dump(spec, f)
        f.flush()
        released = Tokenizer(f.name)
    renders = [{"request": request, "text": text, "nano": nano.encode(text), "released": released.encode(text)}
               for request, text in conversations()]
    lists = {"encode_nano": pieces_of(nano), "encode_released": pieces_of(released), "render": renders}
    print("{")
    for n, (name, rows) in enumerate(lists.items()):
        print(f'"{name}": [')
        print(",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in rows))
        print("]," if n + 1 < len(lists) else "]")
    print("}")


main()
