# Written from chapters/5-1-grammar.ipynb by chapters/_book/export.py. Edit the chapter.
"""The embedded corpus: a synchronous grammar of English and German (section 5.1)."""

__all__ = [
    "ADVERBS",
    "ALONE",
    "BARE",
    "CASES",
    "COMMA",
    "CONTRACTIONS",
    "Clause",
    "Coordination",
    "DER",
    "DETERMINERS",
    "Discard",
    "EIN",
    "ENDINGS",
    "ENGLISH_TENSES",
    "Example",
    "GENDERS",
    "KINDS",
    "MODALS",
    "Node",
    "OWNED",
    "PAST",
    "PERSONS",
    "PLACES",
    "PRONOUNS",
    "Phrase",
    "REFLEXIVES",
    "RELATIVE",
    "SPLITS",
    "STOP",
    "Sampler",
    "TAGS",
    "TENSES",
    "Tree",
    "UNSTRESSED",
    "Word",
    "adjectives_of",
    "adverbs_of",
    "agreement",
    "bracketed",
    "capitalised",
    "concepts",
    "derive",
    "detokenised",
    "draw_adverbs",
    "draw_and",
    "draw_and_it",
    "draw_asked",
    "draw_but",
    "draw_clause",
    "draw_condition",
    "draw_description",
    "draw_determiner",
    "draw_existence",
    "draw_extra",
    "draw_infinitive",
    "draw_meanwhile",
    "draw_other",
    "draw_passive",
    "draw_phrase",
    "draw_predicate",
    "draw_purpose",
    "draw_question",
    "draw_reason",
    "draw_relative",
    "draw_role",
    "draw_sequence",
    "draw_statement",
    "draw_subject",
    "draw_tense",
    "draw_that",
    "draw_wh",
    "early_manner",
    "english_chain",
    "english_determiner",
    "english_finite",
    "english_form",
    "english_noun",
    "english_objects",
    "english_phrase",
    "english_pp",
    "english_predicate",
    "english_pronoun",
    "english_slots",
    "english_verb",
    "example",
    "fill",
    "fits",
    "fixed",
    "frame",
    "gender_of",
    "generate",
    "german_chain",
    "german_determiner",
    "german_noun",
    "german_objects",
    "german_participle",
    "german_phrase",
    "german_pp",
    "german_predicate",
    "german_present",
    "german_pronoun",
    "german_slots",
    "german_subject",
    "german_verb",
    "german_verb_slots",
    "glossary",
    "has_slot",
    "heads",
    "is_indefinite",
    "is_pronoun",
    "joined",
    "joined_about",
    "joint_slots",
    "leaves",
    "lexicon",
    "links",
    "negatable",
    "nouns_of",
    "possessive",
    "pronoun_for",
    "realise",
    "referent",
    "shared_slots",
    "slot_of",
    "split_of",
    "template",
    "two_routines",
    "verbs_of",
    "with_relative",
    "word_by_word",
]

import functools
import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path


@functools.cache
def lexicon(name: str) -> dict:
    """Return one file of `data/grammar/`, for instance "nouns" (5.1).

    Raises FileNotFoundError, with the path, where the folder is not there.
    """
    import transformer

    root = Path(transformer.__file__).resolve().parents[1]
    path = root / "data" / "grammar" / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"the embedded corpus reads {path}, which is not there: it belongs to the "
            "repository, so install with `pip install -e .` from a checkout"
        )
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Word:
    """A leaf: its part of speech, its form, and the links to what it expresses."""

    tag: str
    form: str
    links: frozenset = frozenset()


@dataclass(frozen=True)
class Tree:
    """An inner node: a label over trees and words."""

    label: str
    children: tuple


def leaves(tree: Tree | Word) -> Iterator[Word]:
    """Yield the words of a tree from left to right."""
    if isinstance(tree, Word):
        yield tree
    else:
        for child in tree.children:
            yield from leaves(child)


def bracketed(tree: Tree | Word) -> str:
    """Return a tree in brackets, in the style of the Penn Treebank."""
    if isinstance(tree, Word):
        return f"({tree.tag} {tree.form})"
    return f"({tree.label} {' '.join(map(bracketed, tree.children))})"


@functools.cache
def template(rule: str, language: str) -> list:
    """Return a right-hand side of `rules.json` as nested lists: label, then slots."""
    rules = lexicon("rules")
    text = rules[rule][language]
    while "$" in text:
        name = "$" + text.split("$", 1)[1].split()[0].rstrip(")")
        text = text.replace(name, rules[name][language])
    stack: list[list] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            node = stack.pop()
            stack[-1].append(node)
        else:
            stack[-1].append(token)
    return stack[0][0]


def fill(pattern: list, slots: dict[str, list]) -> list[Tree | Word]:
    """Put the slots into a template; return its tree, or nothing if all are empty."""
    label, *parts = pattern
    children: list[Tree | Word] = []
    for part in parts:
        children += slots.get(part, []) if isinstance(part, str) else fill(part, slots)
    if label.endswith("?") and not slots.get(parts[0]):
        return children
    return [Tree(label.rstrip("?"), tuple(children))] if children else []


@dataclass(frozen=True, eq=False)
class Phrase:
    """A noun phrase of a derivation."""

    noun: str  # a concept of nouns.json, a pronoun, or the "that" of a relative clause
    number: str = "sg"
    determiner: str = ""
    adjectives: tuple[str, ...] = ()
    owner: str = ""  # a name: "Anna's"
    antecedent: str = ""  # the concept that "it" or "that" refers to
    preposition: str = ""  # where the verb leaves it open: "on", "under" or "next-to"
    relative: "Clause | None" = None
    also: "Phrase | None" = None  # what "and" adds


@dataclass(frozen=True, eq=False)
class Clause:
    """A clause of a derivation: a verb, who does what in it, and its features."""

    verb: str
    roles: dict[str, Phrase]
    rule: str = "statement"
    tense: str = "past"
    modal: str = ""
    passive: bool = False
    negated: bool = False
    adverbs: tuple[str, ...] = ()
    predicate: tuple[str, ...] = ()  # an adjective, then "very", "too", "more" or "as"
    than: Phrase | None = None  # what a comparison compares with
    gap: str = (
        ""  # the role that a question or a relative clause has moved to the front
    )
    question: str = ""  # "where", "when" or "why"
    conjunction: str = ""
    front: str = ""  # the slot that stands first: "time" or "place"
    before: "Clause | None" = None  # a subordinate clause in front
    after: "Clause | None" = None  # one at the end
    mark: str = ""


@dataclass(frozen=True, eq=False)
class Coordination:
    """Two clauses joined by "and" or "but"."""

    conjunction: str
    first: Clause
    second: Clause
    rule: str = "coordination"
    mark: str = "."


Node = Phrase | Clause | Coordination


def links(node: Node, *parts: str) -> frozenset:
    """Return the links of a word that expresses these parts of a node."""
    return frozenset((id(node), part) for part in parts or ("head",))


def fixed(spec: dict, language: str, node: Node) -> Tree:
    """Return a fixed phrase, written word/tag/number: equal numbers are aligned."""
    triples = [token.split("/") for token in spec[language].split()]
    words = [Word(tag, form, links(node, spec["en"] + n)) for form, tag, n in triples]
    if words[0].tag in ("IN", "TO", "APPR", "APPRART"):
        label = "PP"
    else:
        label = (
            "ADVP" if words[-1].tag in ("RB", "WRB", "ADV", "ADJD", "PWAV") else "NP"
        )
    return Tree(label, tuple(words))


def frame(clause: Clause, language: str) -> dict[str, str]:
    """Return the clause's roles, subject first, each with its marker.

    A marker is empty, a case, or a preposition (with its case, in German). "@at" and
    "@to" leave the preposition to the noun, "@" leaves it to the derivation.
    """
    spec = lexicon("verbs")[clause.verb][language]["frame"].split()
    markers = dict(part.partition(":")[::2] for part in spec)
    if clause.passive:
        markers = {"theme": "", "agent": {"en": "by", "de": "von+dat"}[language]}
    for role, adjunct in lexicon("closed")["adjuncts"].items():
        markers.setdefault(role, adjunct[language])
    return {role: marker for role, marker in markers.items() if role in clause.roles}


def slot_of(role: str) -> str:
    """Return the slot of a role that a preposition marks."""
    return lexicon("closed")["adjuncts"].get(role, {"slot": "oblique"})["slot"]


def agreement(phrase: Phrase) -> str:
    """Return person and number of a subject, such as "3sg"."""
    pronouns = lexicon("closed")["pronouns"]
    if phrase.also:
        return "3pl"
    if phrase.noun in pronouns:
        return pronouns[phrase.noun]["agreement"]
    return "3" + phrase.number


def english_noun(concept: str, number: str) -> str:
    """Return an English noun's singular or plural."""
    forms = lexicon("nouns")[concept]["en"]
    return forms["sg"] if number == "sg" else forms.get("pl", forms["sg"] + "s")


def english_pronoun(phrase: Phrase, case: int) -> Tree | None:
    """Return the pronoun that a phrase is, if it is one."""
    if phrase.noun == "that":
        person = phrase.antecedent in nouns_of("person")
        tag, form = ("WP", "who") if person else ("WDT", "that")
    elif spec := lexicon("closed")["pronouns"].get(phrase.noun):
        tag, form = spec.get("en_tag", "PRP"), spec["en"][case]
    else:
        return None
    label = "NP" if tag == "PRP" else "WHNP"
    return Tree(label, (Word(tag, form, links(phrase)),))


def english_determiner(phrase: Phrase, following: str) -> list[Word]:
    """Return the determiner before a following word; "a" is "an" before a vowel."""
    if phrase.owner:
        owner = links(phrase, "det")
        return [Word("NNP", phrase.owner, owner), Word("POS", "'s", owner)]
    spec = lexicon("closed")["determiners"][phrase.determiner]["en"][
        phrase.number == "pl"
    ]
    if not spec:
        return []
    form, tag = spec.split("/")
    form = "an" if form == "a" and following[0].lower() in "aeiou" else form
    return [Word(tag, form, links(phrase, "det"))]


def english_phrase(phrase: Phrase, case: int = 1) -> Tree:
    """Return an English noun phrase: case 0 for a subject, 1 for anything else."""
    if tree := english_pronoun(phrase, case):
        return tree
    noun = english_noun(phrase.noun, phrase.number)
    tag = ("NNP" if noun[0].isupper() else "NN") + "S" * (phrase.number == "pl")
    words = [
        Word("JJ", lexicon("adjectives")[name]["en"]["base"], links(phrase, name))
        for name in phrase.adjectives
    ]
    words.append(Word(tag, noun, links(phrase)))
    words[:0] = english_determiner(phrase, words[0].form)
    relative = realise(phrase.relative, "en") if phrase.relative else []
    tree = Tree("WHNP" if phrase.determiner == "which" else "NP", (*words, *relative))
    if phrase.also is None:
        return tree
    joint = Word("CC", "and", links(phrase.also, "and"))
    return Tree("NP", (tree, joint, english_phrase(phrase.also, case)))


ENGLISH_TENSES = {  # the finite verb's tense, then a helper and the form it asks for
    "present": ("present",),
    "past": ("past",),
    "progressive": ("present", "be", "ing"),
    "past-progressive": ("past", "be", "ing"),
    "perfect": ("present", "have", "participle"),
    "pluperfect": ("past", "have", "participle"),
    "future": ("present", "will", "base"),
}
TAGS = {"base": "VB", "ing": "VBG", "participle": "VBN"}


def english_form(verb: dict, form: str) -> str:
    """Return a form that knows no person: base, ing, past or participle."""
    base = verb["base"]
    stem = base.removesuffix("e")
    past = (
        base[:-1] + "ied"
        if base[-1] == "y" and base[-2] not in "aeiou"
        else stem + "ed"
    )
    past = verb.get("past", past)
    return verb.get(form, {"base": base, "ing": stem + "ing"}.get(form, past))


def english_finite(verb: dict, tense: str, person: str) -> Word:
    """Return the finite form for a person such as "3sg"."""
    tag = "VBD" if tense == "past" else "VBZ" if person == "3sg" else "VBP"
    if isinstance(verb.get(tense), dict):
        form = verb[tense].get(person, verb[tense]["other"])
    elif tag == "VBZ":
        es = "es" if verb["base"].endswith(("s", "sh", "ch", "x")) else "s"
        form = verb.get("s", verb["base"] + es)
    else:
        form = english_form(verb, "base" if tag == "VBP" else "past")
    return Word(verb.get("tag", tag), form)


def english_chain(clause: Clause, inverted: bool) -> list[tuple[dict, str]]:
    """Return the helpers, innermost first, each with the form it asks for."""
    helpers = lexicon("closed")["auxiliaries"]["en"]
    chain = [(helpers["be"], "participle")] if clause.passive else []
    if helper := ENGLISH_TENSES[clause.tense][1:]:
        chain.append((helpers[helper[0]], helper[1]))
    if clause.modal:
        chain.append((lexicon("closed")["modals"][clause.modal]["en"], "base"))
    top = chain[-1][0] if chain else lexicon("verbs")[clause.verb]["en"]
    if (clause.negated or inverted) and not (
        top.get("auxiliary") or top["base"] == "be"
    ):
        chain.append((helpers["do"], "base"))
    return chain


def english_verb(
    clause: Clause, person: str, inverted: bool
) -> tuple[Word, list[Word]]:
    """Return the finite verb and the verbs after it."""
    head = lexicon("verbs")[clause.verb]["en"]
    if head["base"] == "be":
        head = lexicon("closed")["auxiliaries"]["en"]["be"]
    main, helper = links(clause, "verb"), links(clause, "aux")
    rest: list[Word] = []
    for above, form in english_chain(clause, inverted):
        between = [token.split("/") for token in above.get("rest", "").split()]
        verb = Word(TAGS[form], english_form(head, form), helper if rest else main)
        rest = [*(Word(tag, word, helper) for word, tag in between), verb, *rest]
        head = above
    finite = english_finite(head, ENGLISH_TENSES[clause.tense][0], person)
    return replace(finite, links=helper if rest else main | helper), rest


def english_pp(marker: str, phrase: Phrase, stranded: bool) -> Tree:
    """Return a prepositional phrase; stranded, its preposition alone."""
    if marker == "@at":
        marker = lexicon("nouns")[phrase.noun]["en"].get("at", "in")
    elif marker == "@":
        marker = lexicon("closed")["prepositions"][phrase.preposition]["en"]
    heads = [Word("IN", form, links(phrase, "prep")) for form in marker.split()]
    return Tree("PP", (*heads, *([] if stranded else [english_phrase(phrase)])))


def is_pronoun(clause: Clause, role: str) -> bool:
    """Return whether a personal pronoun fills a role and stands in its place."""
    named = role in clause.roles and role != clause.gap
    return named and clause.roles[role].noun in lexicon("closed")["pronouns"]


def english_objects(clause: Clause, objects: dict[str, str]) -> dict[str, list]:
    """Return the slots of all roles but the subject, and of the verb's particle."""
    slots: dict[str, list] = {}
    plain = [role for role, marker in objects.items() if not marker]
    for role, marker in objects.items():
        phrase = clause.roles[role]
        if marker:
            slots[slot_of(role)] = [english_pp(marker, phrase, role == clause.gap)]
        elif (
            plain[1:] == ["theme"] and role == plain[0] and is_pronoun(clause, "theme")
        ):
            slots["oblique"] = [english_pp("to", phrase, False)]  # gives it to Anna
        elif role != clause.gap:
            slot = "indirect" if len(plain) == 2 and role == plain[0] else "direct"
            slots[slot] = [english_phrase(phrase)]
    if particle := lexicon("verbs")[clause.verb]["en"].get("particle"):
        late = is_pronoun(clause, "theme")  # turns it on
        word = Word("RP", particle, links(clause, "verb"))
        slots["particle_late" if late else "particle"] = [Tree("PRT", (word,))]
    return slots


def english_predicate(clause: Clause) -> Tree:
    """Return a predicate adjective: plain, with a degree, or in a comparison."""
    name, *degree = clause.predicate
    forms, key = lexicon("adjectives")[name]["en"], links(clause, "adjective")
    if clause.than is None:
        very = [lexicon("closed")["degrees"][word]["en"] for word in degree]
        very = [Word("RB", word, links(clause, "degree")) for word in very]
        return Tree("ADJP", (*very, Word("JJ", forms["base"], key)))
    if degree[0] == "more":
        *more, word = forms["comparative"].split()
        head = [Word("RBR", form, key) for form in more]
        head.append(Word("JJ" if more else "JJR", word, key))
    else:
        head = [Word("RB", "as", links(clause, "as")), Word("JJ", forms["base"], key)]
    than = Word("IN", "than" if degree[0] == "more" else "as", links(clause, "than"))
    return Tree("ADJP", (*head, Tree("PP", (than, english_phrase(clause.than)))))


def early_manner(manner: list[Tree]) -> dict[str, list]:
    """Return the slot of an adverb of manner: "-ly" stands before a preposition."""
    quickly = manner and next(leaves(manner[0])).form.endswith("ly")
    return {"manner_early" if quickly else "manner": manner}


def english_slots(clause: Clause) -> dict[str, list]:
    """Return what each slot of an English right-hand side holds."""
    subject, *others = markers = frame(clause, "en")
    slots = shared_slots(clause, "en")
    slots |= english_objects(clause, {role: markers[role] for role in others})
    inverted = clause.rule in ("yes-no", "wh") and clause.gap != subject
    finite, rest = english_verb(clause, agreement(clause.roles[subject]), inverted)
    middle = slots.pop("often", []) + slots.pop("already", [])
    base = lexicon("verbs")[clause.verb]["en"]["base"]
    late = rest or inverted or base == "be"
    if "oblique" in slots and "direct" not in slots:
        slots |= early_manner(slots.pop("manner", []))
    slots |= {"finite": [finite], "rest": rest, "middle" if late else "early": middle}
    if clause.negated:
        slots["not"] = [Word("RB", "not", links(clause, "not"))]
    slots["infinitive"] = [Word("VB", base, links(clause, "verb"))]
    slots["to"] = [Word("TO", "to", links(clause, "aux"))]
    if "it" in clause.roles:
        slots["there"] = [Tree("NP", (Word("EX", "there", links(clause.roles["it"])),))]
    if clause.predicate:
        slots["predicate"] = [english_predicate(clause)]
    if clause.gap:
        case = 0 if clause.gap == subject else 1
        slots["filler"] = [english_phrase(clause.roles[clause.gap], case)]
    if clause.gap != subject:
        slots["subject"] = [english_phrase(clause.roles[subject], 0)]
    return slots


GENDERS = ["m", "f", "n", "pl"]  # the columns of the tables
CASES = ["nom", "acc", "dat"]  # their rows
DER = [
    ["der", "die", "das", "die"],
    ["den", "die", "das", "die"],
    ["dem", "der", "dem", "den"],
]
EIN = [["", "e", "", "e"], ["en", "e", "", "e"], ["em", "er", "em", "en"]]
ENDINGS = {  # of an adjective, by what stands before it
    "weak": [["e", "e", "e", "en"], ["en", "e", "e", "en"], ["en", "en", "en", "en"]],
    "mixed": [
        ["er", "e", "es", "en"],
        ["en", "e", "es", "en"],
        ["en", "en", "en", "en"],
    ],
    "strong": [
        ["er", "e", "es", "e"],
        ["en", "e", "es", "e"],
        ["em", "er", "em", "en"],
    ],
}


def gender_of(phrase: Phrase) -> int:
    """Return a noun phrase's column in the tables: its gender, or the plural."""
    if phrase.number == "pl":
        return 3
    concept = phrase.antecedent or phrase.noun
    return GENDERS.index(lexicon("nouns")[concept]["de"]["gender"])


def german_determiner(name: str, row: int, gender: int) -> tuple[str, str, str]:
    """Return a determiner's tag and form, and the endings that follow it."""
    spec = lexicon("closed")["determiners"][name]["de"]
    endings, stem = spec["endings"], spec.get("stem", "")
    if name == "the":
        form = DER[row][gender]
    elif endings == "mixed":
        form = stem + EIN[row][gender]
    else:
        form = spec["word"] if "word" in spec else stem + ENDINGS["strong"][row][gender]
    return spec["tag"], form, endings


def german_noun(concept: str, case: str, number: str) -> str:
    """Return a noun's form: *Nachbar* is weak, and the dative plural ends in -n."""
    noun = lexicon("nouns")[concept]["de"]
    if number == "sg":
        return noun["sg"] if case == "nom" else noun.get("oblique", noun["sg"])
    return noun["pl"] + ("n" if case == "dat" and noun["pl"][-1] not in "ns" else "")


def german_pronoun(phrase: Phrase, case: str) -> Tree | None:
    """Return the pronoun that a phrase is, if it is one; "it" has its noun's gender."""
    row = CASES.index(case)
    if phrase.noun == "that":
        dative_plural = phrase.number == "pl" and case == "dat"
        form = "denen" if dative_plural else DER[row][gender_of(phrase)]
        return Tree("NP", (Word("PRELS", form, links(phrase)),))
    name = ["he", "she", "it"][gender_of(phrase)] if phrase.antecedent else phrase.noun
    spec = lexicon("closed")["pronouns"].get(name)
    if spec is None:
        return None
    return Tree(
        "NP", (Word(spec.get("de_tag", "PPER"), spec["de"][row], links(phrase)),)
    )


def german_phrase(phrase: Phrase, case: str, kein: frozenset = frozenset()) -> Tree:
    """Return a noun phrase in a case; with the links of a negation, "kein" says it."""
    if tree := german_pronoun(phrase, case):
        return tree
    row, gender, words = CASES.index(case), gender_of(phrase), []
    endings = "strong"
    if phrase.owner:
        words = [Word("NE", phrase.owner + "s", links(phrase, "det"))]
    elif name := "no" if kein else phrase.determiner:
        tag, form, endings = german_determiner(name, row, gender)
        words = [Word(tag, form, links(phrase, "det") | kein)]
    for name in phrase.adjectives:
        forms = lexicon("adjectives")[name]["de"]
        stem = forms.get("stem", forms["base"]).removesuffix("e")
        words.append(
            Word("ADJA", stem + ENDINGS[endings][row][gender], links(phrase, name))
        )
    tag = "NE" if "proper" in lexicon("nouns")[phrase.noun] else "NN"
    words.append(
        Word(tag, german_noun(phrase.noun, case, phrase.number), links(phrase))
    )
    tree = Tree("NP", tuple(words))
    if phrase.also is None:
        return tree
    joint = Word("KON", "und", links(phrase.also, "and"))
    return Tree("NP", (tree, joint, german_phrase(phrase.also, case)))


CONTRACTIONS = {
    "in dem": "im",
    "an dem": "am",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
    "in das": "ins",
    "an das": "ans",
}


def german_pp(marker: str, phrase: Phrase) -> Tree:
    """Return a prepositional phrase for a marker such as "auf+acc"."""
    if marker in ("@at", "@to"):
        default = {"@at": "in+dat", "@to": "in+acc"}[marker]
        marker = lexicon("nouns")[phrase.noun]["de"].get(marker[1:], default)
    preposition, case = marker.split("+")
    if preposition == "@":
        preposition = lexicon("closed")["prepositions"][phrase.preposition]["de"]
    key = links(phrase, "prep")
    if phrase.noun in ("what", "it"):  # worauf, darauf; womit, damit
        vowel = "r" if preposition[0] in "aeiouäöü" else ""
        start, tag = ("wo", "PWAV") if phrase.noun == "what" else ("da", "PROAV")
        return Tree(
            "PP", (Word(tag, start + vowel + preposition, key | links(phrase)),)
        )
    inner = german_phrase(phrase, case)
    first, *others = inner.children
    article = first.form if isinstance(first, Word) and first.tag == "ART" else ""
    if joint := CONTRACTIONS.get(f"{preposition} {article}"):
        head = Word("APPRART", joint, key | first.links)
        return Tree("PP", (head, Tree("NP", tuple(others))))
    return Tree("PP", (Word("APPR", preposition, key), inner))


PERSONS = {"1sg": "ich", "2sg": "du", "3sg": "er", "1pl": "wir", "3pl": "wir"}
REFLEXIVES = {"1sg": ["mich", "mir"], "2sg": ["dich", "dir"], "1pl": ["uns", "uns"]}
UNSTRESSED = ("be", "emp", "ent", "er", "ge", "ver", "zer")
PAST = ("past", "past-progressive", "perfect", "pluperfect")


def german_present(verb: dict, person: str) -> str:
    """Return the present form for ich, du, er or wir, a separable prefix left out."""
    if person in verb:
        return verb[person]
    base = verb["base"]
    stem = base[:-2] if base.endswith("en") else base[:-1]
    e = "e" if stem.endswith(("t", "d", "fn", "chn", "gn")) else ""
    st = "t" if stem.endswith(("s", "ß", "z", "x")) else e + "st"
    return {"ich": stem + "e", "du": stem + st, "er": stem + e + "t", "wir": base}[
        person
    ]


def german_participle(verb: dict) -> str:
    """Return the past participle."""
    base = verb["base"]
    ge = "" if base.startswith(UNSTRESSED) or base.endswith("ieren") else "ge"
    weak = verb.get("prefix", "") + ge + german_present({"base": base}, "er")
    return verb.get("participle", weak)


def german_chain(clause: Clause) -> tuple[list[tuple[dict, str]], str]:
    """Return the helpers, innermost first, and the tense of the finite verb.

    Each helper comes with the form it asks for.
    """
    helpers = lexicon("closed")["auxiliaries"]["de"]
    chain = [(helpers["werden"], "participle")] if clause.passive else []
    modal = lexicon("closed")["modals"][clause.modal]["de"] if clause.modal else {}
    if modal and "adverb" not in modal:
        chain.append((modal, "infinitive"))
    if clause.tense == "future":
        chain.append((helpers["werden"], "infinitive"))
    top = chain[-1][0] if chain else lexicon("verbs")[clause.verb]["de"]
    if clause.tense not in PAST:
        return chain, "present"
    if clause.tense == "past" and "past" in top:
        return chain, "past"
    chain.append((helpers[top.get("auxiliary", "haben")], "participle"))
    return chain, "past" if clause.tense == "pluperfect" else "present"


def german_verb(clause: Clause, person: str) -> tuple[Word, list[Word], str]:
    """Return the finite verb, the rest of the chain, and the finite verb's prefix."""
    head = lexicon("verbs")[clause.verb]["de"]
    main, helper = links(clause, "verb"), links(clause, "aux")
    rest: list[Word] = []
    chain, tense = german_chain(clause)
    for above, form in chain:
        tag, text = "VVPP", german_participle(head)
        if form == "infinitive":
            tag, text = "VVINF", head.get("prefix", "") + head["base"]
        rest.append(Word(tag, text, helper if rest else main))
        head = above
    form = head["past"][person] if tense == "past" else german_present(head, person)
    both = main if clause.modal == "like" else main | helper  # "gern" says the rest
    finite = Word(head.get("tag", "VVFIN"), form, helper if rest else both)
    return finite, rest, head.get("prefix", "")


def is_indefinite(phrase: Phrase) -> bool:
    """Return whether a noun phrase can take "kein" for its article."""
    common = (
        phrase.noun in lexicon("nouns")
        and "proper" not in lexicon("nouns")[phrase.noun]
    )
    return common and phrase.determiner in ("a", "") and not phrase.owner


def german_objects(
    clause: Clause, objects: dict[str, str]
) -> tuple[dict[str, list], bool]:
    """Return the slots of the objects, and whether "nicht" is still to be said."""
    slots: dict[str, list] = {}
    negated = clause.negated
    for role, marker in objects.items():
        phrase = clause.roles[role]
        if marker in CASES:
            indefinite = is_indefinite(phrase) and marker == "acc"
            slot = {"dat": "dative", "acc": "indefinite" if indefinite else "definite"}[
                marker
            ]
            if phrase.noun in lexicon("closed")["pronouns"]:
                slot = f"pronoun_{marker}"
            swallowed = negated and indefinite and clause.modal != "like"
            negated = negated and not swallowed
            kein = links(clause, "not") if swallowed else frozenset()
            tree = german_phrase(phrase, marker, kein)
        else:
            slot, tree = slot_of(role), german_pp(marker, phrase)
        slots["filler" if role == clause.gap else slot] = [tree]
        if phrase.relative:  # it waits until the bracket is closed
            slots["after"] = realise(phrase.relative, "de")
    return slots, negated


def german_predicate(clause: Clause) -> Tree:
    """Return a predicate adjective: plain, with a degree, or in a comparison."""
    name, *degree = clause.predicate
    forms, key = lexicon("adjectives")[name]["de"], links(clause, "adjective")
    if clause.than is None:
        very = [lexicon("closed")["degrees"][word]["de"] for word in degree]
        very = [Word("ADV", word, links(clause, "degree")) for word in very]
        return Tree("ADJP", (*very, Word("ADJD", forms["base"], key)))
    more = degree[0] == "more"
    head = [] if more else [Word("ADV", "so", links(clause, "as"))]
    head.append(Word("ADJD", forms["comparative" if more else "base"], key))
    than = Word("KOKOM", "als" if more else "wie", links(clause, "than"))
    return Tree("ADJP", (*head, Tree("PP", (than, german_phrase(clause.than, "nom")))))


def german_subject(clause: Clause, role: str) -> dict[str, list]:
    """Return the subject's slot, a relative clause between commas included."""
    phrase = clause.roles[role]
    tree = german_phrase(phrase, "nom")
    if phrase.relative:
        clause_tree = realise(phrase.relative, "de")
        tree = Tree("NP", (*tree.children, *clause_tree, Word("$,", ",")))
    return {"filler" if role == clause.gap else "subject": [tree]}


def german_verb_slots(clause: Clause, subject: Phrase) -> dict[str, list]:
    """Return the verb's slots: finite and rest, or final, or with "zu"; reflexive."""
    verb, person = lexicon("verbs")[clause.verb]["de"], agreement(subject)
    finite, rest, prefix = german_verb(clause, PERSONS[person])
    main, helper = links(clause, "verb"), links(clause, "aux")
    slots = {"finite": [finite], "rest": rest, "um": [Word("KOUI", "um", helper)]}
    slots["final"] = [*rest, replace(finite, form=prefix + finite.form)]
    if prefix:
        slots["rest"] = [Word("PTKVZ", prefix, main)]
    slots["zu"] = [Word("PTKZU", "zu", helper), Word("VVINF", verb["base"], main)]
    if "prefix" in verb:
        slots["zu"] = [
            Word("VVIZU", f"{verb['prefix']}zu{verb['base']}", main | helper)
        ]
    if "reflexive" in verb:
        forms = REFLEXIVES.get(person, ["sich", "sich"])
        slots["reflexive"] = [Word("PRF", forms[verb["reflexive"] == "dat"], main)]
    if clause.modal == "like":
        slots["gern"] = [Word("ADV", "gern", helper)]
    return slots


def german_slots(clause: Clause) -> dict[str, list]:
    """Return what each slot of a German right-hand side holds."""
    subject, *others = markers = frame(clause, "de")
    objects, negated = german_objects(clause, {role: markers[role] for role in others})
    slots = shared_slots(clause, "de") | objects | german_subject(clause, subject)
    slots |= german_verb_slots(clause, clause.roles[subject])
    if negated:
        slots["not"] = [Word("PTKNEG", "nicht", links(clause, "not"))]
    if clause.predicate:
        slots["predicate"] = [german_predicate(clause)]
    return slots


COMMA, STOP = (
    {"en": ",", "de": "$,"},
    {"en": ".", "de": "$."},
)  # tags of the punctuation


def shared_slots(clause: Clause, language: str) -> dict[str, list]:
    """Return the slots that every language fills alike."""
    closed = lexicon("closed")
    slots: dict[str, list] = {}
    for name in clause.adverbs:
        entry = lexicon("adverbs")[name]
        slots[entry["slot"]] = [fixed(entry, language, clause)]
    if clause.conjunction:
        spec = closed["conjunctions"][clause.conjunction]
        slots["conjunction"] = list(fixed(spec, language, clause).children)
    if clause.question:
        slots["filler"] = [
            fixed(closed["questions"][clause.question], language, clause)
        ]
    if clause.after:
        slots["after"] = realise(clause.after, language)
    if clause.mark:
        slots["end"] = [Word(STOP[language], clause.mark, links(clause, "end"))]
    return slots


def joint_slots(node: Coordination, language: str) -> dict[str, list]:
    """Return the slots of a coordination; a comma stands before "but"."""
    spec = lexicon("closed")["conjunctions"][node.conjunction]
    comma = Word(COMMA[language], ",", links(node, "comma"))
    return {
        "first": realise(node.first, language),
        "second": realise(node.second, language),
        "conjunction": list(fixed(spec, language, node).children),
        "comma": [comma] if node.conjunction == "but" else [],
        "end": [Word(STOP[language], node.mark, links(node, "end"))],
    }


def realise(
    node: Clause | Coordination, language: str, first: bool = False
) -> list[Tree]:
    """Return a derivation's tree in a language, "en" or "de": its rule's side, filled.

    `first` says that a subordinate clause stands first: its comma comes after it.
    """
    if isinstance(node, Coordination):
        return fill(template(node.rule, language), joint_slots(node, language))
    slots = {"en": english_slots, "de": german_slots}[language](node)
    comma = [Word(COMMA[language], ",", links(node, "comma"))]
    if node.front:
        slots["front"] = slots.pop(node.front)
    if node.before:
        slots["front"] = realise(node.before, language, first=True)
        slots["front"] += comma if language == "de" else []
    if not first:
        slots["comma"] = comma
    return fill(template(node.rule, language), slots)


@dataclass(frozen=True)
class Example:
    """A sentence pair with its gold alignment and its gold trees (5.1).

    `alignment` holds pairs (i, j): English token i and German token j say the same.
    The leaves of a tree are the tokens; `english` and `german` are the sentences as
    they are written.
    """

    english: str
    german: str
    alignment: tuple[tuple[int, int], ...]
    english_tree: str
    german_tree: str
    english_tokens: tuple[str, ...]
    german_tokens: tuple[str, ...]


def detokenised(tokens: Iterable[str]) -> str:
    """Return the sentence as it is written: punctuation and "'s" follow their word."""
    text = " ".join(tokens).replace(" can not ", " cannot ")
    for mark in ("'s", ",", ".", "?"):
        text = text.replace(f" {mark}", mark)
    return text


def capitalised(tree: Tree | Word) -> Tree | Word:
    """Return the tree with a capital at its beginning."""
    if isinstance(tree, Word):
        return replace(tree, form=tree.form[0].upper() + tree.form[1:])
    return replace(tree, children=(capitalised(tree.children[0]), *tree.children[1:]))


def example(derivation: Clause | Coordination) -> Example:
    """Say a derivation in both languages."""
    trees = [capitalised(realise(derivation, language)[0]) for language in ("en", "de")]
    english, german = (list(leaves(tree)) for tree in trees)
    alignment = tuple(
        (i, j)
        for i, source in enumerate(english)
        for j, target in enumerate(german)
        if source.links & target.links
    )
    tokens = [tuple(word.form for word in words) for words in (english, german)]
    return Example(
        *map(detokenised, tokens), alignment, *map(bracketed, trees), *tokens
    )


class Discard(Exception):
    """A derivation that came to nothing or to nonsense; another is drawn instead."""


class Sampler:
    """Makes the choices of derivations, and knows how improbable they were together."""

    def __init__(self, seed: str):
        self.uniform = random.Random(seed).random
        self.surprise = 0.0  # the natural logarithm of 1 / probability

    def weighted(self, weights: dict):
        """Return a key of the dictionary, as often as its weight says."""
        total = sum(weights.values())
        if not total:
            raise Discard
        point = self.uniform() * total
        for option, weight in weights.items():
            point -= weight
            if point < 0:
                self.surprise += math.log(total / weight)
                return option
        return self.weighted(weights)  # rounding has left the point beyond the end

    def pick(self, options: Iterable):
        """Return one of the options, each as often as the others."""
        options = tuple(options)
        if not options:
            raise Discard
        self.surprise += math.log(len(options))
        return options[int(self.uniform() * len(options))]

    def chance(self, share: float) -> bool:
        """Return True in this share of the calls."""
        return self.weighted({True: share, False: 1 - share})


@functools.cache
def nouns_of(classes: str) -> tuple[str, ...]:
    """Return the nouns that have one of these names or are in one of these classes."""
    wanted = set(classes.split())
    nouns = lexicon("nouns").items()
    return tuple(
        noun for noun, entry in nouns if wanted & {noun, *entry["class"].split()}
    )


@functools.cache
def adjectives_of(noun: str, use: str) -> tuple[str, ...]:
    """Return the adjectives that stand before a noun ("of") or after "be" ("be")."""
    return tuple(
        name
        for name, entry in lexicon("adjectives").items()
        if noun in nouns_of(entry[use]) and noun not in entry.get("never", "").split()
    )


@functools.cache
def adverbs_of(slot: str, tense: str, verb: str) -> tuple[str, ...]:
    """Return the adverbs of a slot that go with a tense and a verb."""
    long = "long" in lexicon("verbs")[verb]  # last year one moves, but does not get up
    adverbs = lexicon("adverbs").items()
    fitting = [(name, e) for name, e in adverbs if long or "long" not in e]
    return tuple(n for n, e in fitting if (e["slot"], e.get("tense")) == (slot, tense))


@functools.cache
def verbs_of(feature: str, tense: str = "", takes: str = "") -> tuple[str, ...]:
    """Return the verbs with a feature, a tense, and a complement, "" for none."""
    return tuple(
        name
        for name, entry in lexicon("verbs").items()
        if (not feature or feature in entry)
        and (not tense or tense in entry["tenses"])
        and entry.get("takes", "") == takes
    )


def referent(phrase: Phrase) -> str:
    """Return the pronoun for a noun phrase; a child's may be any: discard it."""
    if phrase.also or phrase.number == "pl":
        return "they"
    if phrase.noun in lexicon("closed")["pronouns"]:
        return phrase.noun
    name = (
        lexicon("nouns").get(phrase.antecedent or phrase.noun, {}).get("pronoun", "it")
    )
    if not name:
        raise Discard
    return name


def pronoun_for(phrase: Phrase) -> Phrase:
    """Return the pronoun that refers back to a noun phrase."""
    name = referent(phrase)
    noun = phrase.noun if phrase.noun in lexicon("nouns") else phrase.antecedent
    return Phrase(name, antecedent=noun if name == "it" else "")


DETERMINERS = {
    "mass": {"": 6, "the": 4},
    "plural": {"the": 4, "two": 2, "three": 1, "many": 1},
    "bare": {"the": 4, "": 3, "two": 2, "three": 1, "many": 1},
    "place": {"the": 9, "a": 1},
    "thing": {"the": 5, "a": 4, "this": 1},
    "known": {"the": 4, "this": 1},
    "new": {"a": 1},
    "person": {"the": 6, "a": 2, "every": 0.3},
    "other": {"the": 6, "a": 2},
    "kin": {"my": 3, "our": 1, "your": 1, "": 1},
    "pair": {"the": 4, "": 3},
}
BARE = "food text readable plant animal clothes picture song film"
OWNED = "vehicle clothes furniture luggage animal device worn text small"


def draw_determiner(
    s: Sampler, noun: str, number: str, owner: str, kind: str
) -> tuple[str, str]:
    """Draw a determiner and, in its stead, the name of an owner."""
    own = noun in nouns_of(OWNED) and kind == "thing"
    if noun in nouns_of("kin"):
        name = s.weighted(DETERMINERS["kin"] | ({owner: 6} if owner else {}))
        return name, "" if name else s.pick(nouns_of("name"))
    if owner and own and s.chance(0.2):
        return owner, ""
    if own and s.chance(0.06):
        return "", s.pick(nouns_of("name"))
    if noun in nouns_of("mass pair") and kind != "known":
        kind = "mass" if noun in nouns_of("mass") else "pair"
    elif number == "pl" and kind != "known":
        kind = "bare" if noun in nouns_of(BARE) and kind == "thing" else "plural"
    return s.weighted(DETERMINERS[kind]), ""


def draw_phrase(
    s: Sampler, classes: str, kind: str = "thing", owner: str = ""
) -> Phrase:
    """Draw a noun phrase of some classes; `owner` is the subject's possessive."""
    noun = s.pick(nouns_of(classes))
    if noun in nouns_of("name town_name language"):
        return Phrase(noun)
    number = "sg"
    if noun in nouns_of("pair"):
        number = "pl"
    elif noun not in nouns_of("mass single") and kind != "place":
        number = "pl" if s.chance(0.18) else "sg"
    determiner, name = draw_determiner(s, noun, number, owner, kind)
    fitting = adjectives_of(noun, "of")
    share = 0.2 if noun in nouns_of("person") else 0.35
    adjectives = (
        (s.pick(fitting),) if fitting and kind != "known" and s.chance(share) else ()
    )
    return Phrase(noun, number, determiner, adjectives, name)


PRONOUNS = {"I": 2, "you": 1, "he": 2, "she": 2, "we": 2, "they": 2}
ALONE = {"I": "I we", "we": "I we you", "you": "you we"}  # whom these cannot meet


def possessive(phrase: Phrase | None) -> str:
    """Return the possessive that refers to a noun phrase, "" if there is none."""
    try:
        return (
            lexicon("closed")["pronouns"][referent(phrase)]["possessive"]
            if phrase
            else ""
        )
    except Discard:
        return ""


def draw_subject(s: Sampler) -> Phrase:
    """Draw somebody who acts."""
    kind = s.weighted({"name": 3, "pronoun": 2, "noun": 4, "pair": 0.5})
    if kind == "pronoun":
        return Phrase(s.weighted(PRONOUNS))
    if kind == "noun":
        return draw_phrase(s, "person", "person")
    first = s.pick(nouns_of("name"))
    if kind == "name":
        return Phrase(first)
    if s.chance(0.5):
        second = Phrase(s.pick(name for name in nouns_of("name") if name != first))
    else:
        second = Phrase(s.pick(nouns_of("kin")), determiner=possessive(Phrase(first)))
    return Phrase(first, also=second)


def draw_other(s: Sampler, subject: Phrase | None) -> Phrase:
    """Draw somebody to whom a subject does something."""
    actor = subject.noun if subject else ""
    kind = s.weighted({"name": 2, "pronoun": 1.5, "noun": 4})
    if kind == "pronoun":
        barred = ALONE.get(actor, "").split()
        return Phrase(
            s.weighted({p: w for p, w in PRONOUNS.items() if p not in barred})
        )
    if kind == "name":
        other = Phrase(s.pick(nouns_of("name")))
    else:
        other = draw_phrase(s, "person", "other", possessive(subject))
    if other.noun == actor or (
        subject and subject.also and subject.also.noun == other.noun
    ):
        raise Discard
    return other


TENSES = {
    "past": 5,
    "perfect": 1.5,
    "future": 1.5,
    "progressive": 1.5,
    "modal": 3,
    "present": 2,
}
MODALS = {
    "can": 2,
    "must": 1,
    "should": 1,
    "want": 2,
    "would-like": 1,
    "may": 0.7,
    "like": 2,
}
ADVERBS = {
    "perfect": 1.0,
    "progressive": 1.0,
    "present": 1.0,
    "future": 0.6,
    "past": 0.5,
}
PLACES = "place town inside outdoors shop building surface wall town_name transport"


def draw_role(s: Sampler, verb: str, role: str, subject: Phrase | None) -> Phrase:
    """Draw what fills a role, and the preposition where the verb offers several."""
    entry = lexicon("verbs")[verb]
    classes = s.pick((entry["roles"] | entry.get("optional", {}))[role].split())
    there = role in ("goal", "place") and set(nouns_of(classes)) & set(nouns_of(PLACES))
    if classes == "it":
        return Phrase("it")
    if classes == "person":
        phrase = draw_subject(s) if role == "agent" else draw_other(s, subject)
    else:
        kind = "place" if there else "new" if "new" in entry else "thing"
        theirs = (
            possessive(subject)
            if "beneficiary" not in entry.get("optional", ())
            else ""
        )
        phrase = draw_phrase(s, classes, kind, theirs)
    if role == "goal" and "prepositions" in entry:
        return replace(phrase, preposition=s.pick(entry["prepositions"]))
    return phrase


def draw_tense(s: Sampler, verb: str, tense: str) -> tuple[str, str]:
    """Draw a tense that a verb allows, and the modal that stands for one of them."""
    tenses = lexicon("verbs")[verb]["tenses"]
    tense = tense or s.weighted({name: TENSES[name] for name in tenses})
    if tense != "modal":
        return tense, ""
    modal = s.weighted(
        {m: w for m, w in MODALS.items() if m != "like" or "present" in tenses}
    )
    past = modal in ("can", "want", "may") and s.chance(0.25)
    return "past" if past else "present", modal


def draw_adverbs(s: Sampler, verb: str, tense: str, modal: str) -> tuple[str, ...]:
    """Draw the adverb that a tense asks for, where the verb is no lasting state."""
    state = lexicon("verbs")[verb]["tenses"] == ["present"]
    if state or modal or not s.chance(ADVERBS[tense]):
        return ()
    slots = {"perfect": ["already"], "present": ["time", "often"]}.get(tense, ["time"])
    return (s.pick(adverbs_of(s.pick(slots), tense, verb)),)


def fits(phrase: Phrase, classes: str) -> bool:
    """Return whether what a phrase speaks of is in one of these classes."""
    noun = phrase.antecedent or phrase.noun
    person = noun in PRONOUNS or noun in nouns_of("name")
    return "person" in classes.split() if person else noun in nouns_of(classes)


def draw_extra(s: Sampler, verb: str, tense: str) -> str:
    """Draw an adverb of manner or an adjunct's role, or "" for neither."""
    entry = lexicon("verbs")[verb]
    manner = entry.get("how", []) if tense != "perfect" else []
    extras = [*manner, *entry.get("optional", ())]
    return s.pick(extras) if extras and s.chance(0.35) else ""


def draw_clause(
    s: Sampler, verb: str = "", tense: str = "", plain: bool = False, **given: Phrase
) -> Clause:
    """Draw a clause round a verb; plain, it has no adverbs and no adjuncts."""
    verb = verb or s.pick(verbs_of(""))
    entry = lexicon("verbs")[verb]
    roles, adverbs = dict(given), []
    if not all(fits(phrase, entry["roles"].get(r, "")) for r, phrase in given.items()):
        raise Discard
    for role in entry["roles"]:
        if role in entry.get("instead", {}) and s.chance(0.5):
            adverbs.append(s.pick(entry["instead"][role]))
        elif role not in given:
            roles[role] = draw_role(s, verb, role, roles.get("agent"))
    tense, modal = draw_tense(s, verb, tense)
    if not plain:
        adverbs += draw_adverbs(s, verb, tense, modal)
        extra = draw_extra(s, verb, tense)
        if extra in entry.get("optional", ()):
            roles[extra] = draw_role(s, verb, extra, roles.get("agent"))
        elif extra:
            adverbs.append(extra)
    if {phrase.owner for phrase in roles.values()} & {p.noun for p in roles.values()}:
        raise Discard
    return Clause(verb, roles, tense=tense, modal=modal, adverbs=tuple(adverbs))


def heads(clause: Clause) -> set[str]:
    """Return the nouns and pronouns that fill a clause's roles."""
    return {phrase.noun for phrase in clause.roles.values()}


def has_slot(clause: Clause, *slots: str) -> bool:
    """Return whether one of the clause's adverbs stands in one of these slots."""
    return any(lexicon("adverbs")[name]["slot"] in slots for name in clause.adverbs)


def negatable(clause: Clause) -> bool:
    """Return whether a "not" in the clause would mean the same in both languages."""
    timed = clause.tense in ("present", "perfect") and has_slot(clause, "time")
    loose = has_slot(clause, "often", "already", "manner") or timed
    every = any(phrase.determiner == "every" for phrase in clause.roles.values())
    return not (loose or every) and clause.modal not in ("must", "would-like")


def draw_statement(s: Sampler) -> Clause:
    """Draw a statement: plain, negated, or with its time or place in front."""
    clause = draw_clause(s)
    if has_slot(clause, "time") and s.chance(0.5):
        return replace(clause, rule="fronted", front="time", mark=".")
    optional = lexicon("verbs")[clause.verb].get("optional", {})
    if "place" in optional and "place" in clause.roles and s.chance(0.4):
        return replace(clause, rule="fronted", front="place", mark=".")
    return replace(clause, negated=negatable(clause) and s.chance(0.35), mark=".")


def draw_question(s: Sampler) -> Clause:
    """Draw a question to be answered by yes or no; nobody asks what he did himself."""
    clause = draw_clause(s)
    if heads(clause) & {"I", "we"}:
        raise Discard
    return replace(clause, rule="yes-no", mark="?")


def draw_wh(s: Sampler) -> Clause:
    """Draw a question for somebody, something, a place, a time or a reason."""
    clause = replace(draw_clause(s, plain=True), rule="wh", mark="?")
    if heads(clause) & {"I", "we"}:
        raise Discard
    optional = lexicon("verbs")[clause.verb].get("optional", {})
    words = {"": 5, "why": 1}
    if clause.tense == "past" and not clause.modal:
        words |= {"when": 1} | ({"where": 1} if "place" in optional else {})
    if question := s.weighted(words):
        return replace(clause, question=question)
    role = s.pick(role for role in clause.roles if role in ("agent", "theme"))
    asked = draw_asked(s, clause.roles[role])
    if asked.noun == "what" and "." in clause.verb:  # is it liegt or steht?
        raise Discard
    return replace(clause, roles=clause.roles | {role: asked}, gap=role)


def draw_asked(s: Sampler, phrase: Phrase) -> Phrase:
    """Draw the question for a noun phrase: who, what or which."""
    if phrase.noun in nouns_of("person name") or phrase.noun in PRONOUNS:
        return Phrase("who")
    if phrase.noun in lexicon("closed")["pronouns"]:
        raise Discard
    if phrase.noun in nouns_of("town_name language mass") or s.chance(0.4):
        return Phrase("what")
    return Phrase(phrase.noun, phrase.number, "which")


def draw_predicate(
    s: Sampler, subject: Phrase, tense: str, names: Iterable[str] = ()
) -> Clause:
    """Draw what somebody or something is like, out of some adjectives or all."""
    noun = subject.antecedent or subject.noun
    noun = "man" if noun in PRONOUNS or noun in nouns_of("name") else noun
    fitting = adjectives_of(noun, "be")
    name = s.pick(name for name in names or fitting if name in fitting)
    graded = "plain" not in lexicon("adjectives")[name] and s.chance(0.25)
    predicate = (name, "very") if graded else (name,)
    subject = replace(subject, adjectives=())
    return Clause("be", {"agent": subject}, tense=tense, predicate=predicate)


def draw_description(s: Sampler) -> Clause:
    """Draw what one thing is like, or how it compares with another of its kind."""
    name = s.pick(lexicon("adjectives"))
    entry = lexicon("adjectives")[name]
    classes = s.pick(entry["be"].split())
    people = classes == "person"
    subject = draw_subject(s) if people else draw_phrase(s, classes, "known")
    tense = s.weighted({"present": 3, "past": 1})
    clause = replace(draw_predicate(s, subject, tense, [name]), mark=".")
    if "comparative" not in entry["en"] or s.chance(0.4):
        if (
            len(clause.predicate) == 1
            and subject.noun not in ("I", "we")
            and s.chance(0.2)
        ):
            return replace(clause, rule="yes-no", mark="?")
        return replace(clause, negated=len(clause.predicate) == 1 and s.chance(0.25))
    other = draw_other(s, subject) if people else draw_phrase(s, classes, "known")
    if other.noun == subject.noun or other.noun in PRONOUNS:
        raise Discard
    how = s.weighted({"more": 2, "as": 1})
    negated = how == "as" and s.chance(0.5)
    return replace(clause, predicate=(name, how), than=other, negated=negated)


def draw_passive(s: Sampler) -> Clause:
    """Draw what was done, or has to be."""
    verb = s.pick(verbs_of("passive"))
    entry = lexicon("verbs")[verb]
    modals = {} if "creates" in entry else {"must": 1, "can": 0.5, "should": 0.5}
    modal = s.weighted({"": 3} | modals)
    classes = s.pick(entry["roles"]["theme"].split())
    roles = {"theme": draw_phrase(s, classes, "thing" if s.chance(0.5) else "known")}
    if not modal and s.chance(0.7):
        roles["agent"] = draw_subject(s)
    if "agent" in roles and roles["agent"].noun in PRONOUNS:
        raise Discard
    tense, adverbs = "present" if modal else "past", ()
    if not modal and s.chance(0.4):
        adverbs = (s.pick(adverbs_of("time", "past", verb)),)
    clause = Clause(
        verb, roles, "statement", tense, modal, True, adverbs=adverbs, mark="."
    )
    if adverbs and s.chance(0.4):
        return replace(clause, rule="fronted", front="time")
    if s.chance(0.2):
        return replace(clause, rule="yes-no", mark="?")
    return replace(clause, negated=modal != "must" and s.chance(0.2))


def draw_existence(s: Sampler) -> Clause:
    """Draw what there is somewhere: "es gibt" takes the accusative."""
    theme = draw_phrase(s, lexicon("verbs")["exist"]["roles"]["theme"], "place")
    number = s.weighted({"sg": 3, "pl": 2})
    determiners = {"two": 1, "three": 1, "many": 2} if number == "pl" else {"a": 4}
    determiner = s.weighted(determiners | {"no": 1})
    theme = replace(theme, number=number, determiner=determiner, owner="")
    roles = {
        "it": Phrase("it"),
        "theme": theme,
        "place": draw_role(s, "exist", "place", None),
    }
    tense = s.weighted({"present": 3, "past": 1})
    return Clause("exist", roles, "existence", tense, mark=".")


def joined(main: Clause, conjunction: str, sub: Clause, first: bool) -> Clause:
    """Put a subordinate clause before or after its main clause."""
    sub = replace(sub, rule="subordinate", conjunction=conjunction)
    if first:
        return replace(main, rule="fronted", before=sub, mark=".")
    return replace(main, after=sub, mark=".")


def joined_about(
    main: Clause, role: str, conjunction: str, sub: Clause, first: bool
) -> Clause:
    """Join a clause whose agent is the pronoun for a role of the main clause.

    Where the subordinate clause stands first, noun and pronoun change places.
    """
    if first:
        phrase, pronoun = main.roles[role], sub.roles["agent"]
        main = replace(main, roles=main.roles | {role: pronoun})
        sub = replace(sub, roles=sub.roles | {"agent": phrase})
    return joined(main, conjunction, sub, first)


def draw_reason(s: Sampler) -> Clause:
    """Draw what is done because of something, or in spite of it."""
    conjunction = s.weighted({"because": 2, "although": 1})
    verb = s.pick(verbs_of(conjunction))
    main = draw_clause(s, verb, plain=s.chance(0.6))
    if main.modal in ("can", "may", "like"):
        raise Discard
    role, name = s.pick(lexicon("verbs")[verb][conjunction]).split()
    if role == "theme" and main.roles["agent"].noun in ("he", "she", "they"):
        raise Discard
    bare = replace(main.roles[role], adjectives=())
    main = replace(main, roles=main.roles | {role: bare})
    tense = "past" if main.tense == "past" else "present"
    reason = draw_predicate(s, pronoun_for(main.roles[role]), tense, [name])
    contrary = conjunction == "although" and tense == "past" and not main.adverbs
    if contrary and not main.modal and s.chance(0.4):
        conjunction, main = "because", replace(main, negated=True)
        if role == "theme" and "comparative" in lexicon("adjectives")[name]["en"]:
            reason = replace(reason, predicate=(name, "too"))
    return joined_about(main, role, conjunction, reason, s.chance(0.4))


def two_routines(s: Sampler) -> tuple[str, str]:
    """Draw two everyday verbs in the order of the events; nobody gets up late."""
    first = s.pick(verbs_of("routine"))
    others = (verb for verb in verbs_of("routine") if verb not in (first, "get-up"))
    return first, s.pick(others)


def draw_sequence(s: Sampler) -> Clause:
    """Draw two things that somebody did one after the other."""
    first, second = two_routines(s)
    if s.chance(0.5):
        main = draw_clause(s, first, "past", plain=True)
        agent = pronoun_for(main.roles["agent"])
        sub = draw_clause(s, second, "past", plain=True, agent=agent)
        return joined_about(main, "agent", "before", sub, s.chance(0.4))
    main = draw_clause(s, second, "past", plain=True)
    agent = pronoun_for(main.roles["agent"])
    sub = draw_clause(s, first, "pluperfect", plain=True, agent=agent)
    return joined_about(main, "agent", "after", sub, True)


def draw_meanwhile(s: Sampler) -> Clause:
    """Draw what happened while something else went on."""
    lasting = draw_clause(
        s, s.pick(verbs_of("lasting")), "past-progressive", plain=True
    )
    conjunction = s.weighted({"while": 2, "when.once": 1})
    verbs = (
        verbs_of("routine")
        if conjunction == "while"
        else ["arrive", "come-back", "call"]
    )
    event = draw_clause(s, s.pick(verbs), "past", plain=True)
    if heads(event) & heads(lasting):
        raise Discard
    if conjunction == "while":
        return joined(event, "while", lasting, s.chance(0.5))
    return joined(lasting, "when.once", event, s.chance(0.5))


def draw_condition(s: Sampler) -> Clause:
    """Draw what happens whenever, or if, somebody is in a state or it rains."""
    conjunction, tense = s.pick([("when.always", "present"), ("if", "future")])
    first = s.chance(0.6)
    if s.chance(0.5):
        weather = Clause(
            s.pick(["rain", "snow"]), {"agent": Phrase("it")}, tense="present"
        )
        if conjunction == "if":
            weather = replace(weather, adverbs=("tomorrow",))
        main = draw_clause(s, s.pick(verbs_of("wet", tense)), tense, plain=True)
        return joined(main, conjunction, weather, first)
    reasons = [
        (verb, reason.split()[1])
        for verb in verbs_of("because", tense)
        for reason in lexicon("verbs")[verb]["because"]
        if reason.startswith("agent")
    ]
    verb, name = s.pick(reasons)
    main = draw_clause(s, verb, tense, plain=True)
    state = draw_predicate(s, pronoun_for(main.roles["agent"]), "present", [name])
    return joined_about(main, "agent", conjunction, state, True)


def draw_that(s: Sampler) -> Clause:
    """Draw what somebody thinks, knows, says or hopes."""
    takes = s.weighted({"that": 4, "hope": 1})
    main = draw_clause(s, s.pick(verbs_of("", takes=takes)), "present", plain=True)
    if takes == "that" and s.chance(0.25):
        inner = draw_predicate(s, draw_subject(s), s.pick(["present", "past"]))
    else:
        inner = draw_clause(s, tense="future" if takes == "hope" else "")
    if heads(main) & heads(inner):
        raise Discard
    doubt = main.verb in ("think.that", "believe.that") and s.chance(0.25)
    return joined(replace(main, negated=doubt), "that", inner, first=False)


def draw_infinitive(s: Sampler) -> Clause:
    """Draw what somebody tries, decides or forgets to do."""
    verb = s.pick(verbs_of("", takes="to"))
    tense = s.weighted({"past": 3, "perfect": 1})
    main = draw_clause(s, verb, tense, plain=tense == "past")
    verb = s.pick(verbs_of("", "modal"))
    inner = draw_clause(s, verb, "past", plain=True, agent=main.roles["agent"])
    return replace(main, after=replace(inner, rule="infinitive"), mark=".")


def draw_purpose(s: Sampler) -> Clause:
    """Draw where somebody goes, to do there what is done there."""
    tense = s.weighted({"past": 3, "future": 1, "modal": 1})
    main = draw_clause(s, "go", tense, plain=True)
    if "goal" not in main.roles:
        raise Discard
    goal = main.roles["goal"].noun
    verb = s.pick(
        verb
        for verb in verbs_of("optional", "modal")
        if goal in nouns_of(lexicon("verbs")[verb]["optional"].get("place", ""))
    )
    inner = draw_clause(s, verb, "past", plain=True, agent=main.roles["agent"])
    return replace(main, after=replace(inner, rule="purpose"), mark=".")


def with_relative(s: Sampler, phrase: Phrase) -> Phrase:
    """Draw a relative clause to a noun phrase."""
    roles = [
        (verb, role)
        for verb in verbs_of("")
        for role, classes in lexicon("verbs")[verb]["roles"].items()
        if role in ("agent", "theme") and phrase.noun in nouns_of(classes)
    ]
    verb, role = s.pick(roles)
    tense = s.pick(
        t for t in ("past", "present") if t in lexicon("verbs")[verb]["tenses"]
    )
    pronoun = Phrase("that", phrase.number, antecedent=phrase.noun)
    clause = draw_clause(s, verb, tense, plain=True, **{role: pronoun})
    if phrase.noun in heads(clause):
        raise Discard
    relative = replace(clause, rule="relative", gap=role)
    return replace(phrase, determiner="the", owner="", adjectives=(), relative=relative)


def draw_relative(s: Sampler) -> Clause:
    """Draw a statement with a relative clause to its subject or its object."""
    if s.chance(0.5):
        noun = draw_phrase(s, s.pick(RELATIVE.split()))
        tense = s.weighted({"present": 2, "past": 1})
        clause = draw_predicate(s, noun, tense)
        if noun.noun in nouns_of("person") and s.chance(0.5):
            clause = draw_clause(s, plain=True, agent=noun)
        subject = with_relative(s, noun)
        if (
            heads(subject.relative) & heads(clause)
            or subject.relative.verb == clause.verb
        ):
            raise Discard
        return replace(clause, roles=clause.roles | {"agent": subject}, mark=".")
    clause = draw_clause(s, plain=True)
    theme = clause.roles.get("theme")
    if set(clause.roles) != {"agent", "theme"} or theme.noun not in nouns_of(RELATIVE):
        raise Discard
    theme = with_relative(s, theme)
    agent = clause.roles["agent"].noun
    if agent in heads(theme.relative) or theme.relative.verb == clause.verb:
        raise Discard
    return replace(clause, roles=clause.roles | {"theme": theme}, mark=".")


RELATIVE = (
    "person animal text readable device vehicle film clothes furniture luggage picture"
)


def draw_but(s: Sampler) -> Coordination:
    """Draw two who differ; the second clause says "it" of what the first has named."""
    first, subject = draw_clause(s, plain=True), draw_subject(s)
    if set(first.roles) != {"agent", "theme"} or not negatable(first):
        raise Discard
    agent, theme = first.roles["agent"], pronoun_for(first.roles["theme"])
    people = {referent(agent), referent(subject)}
    if len(people) == 1 and people & {"they", "we", "I", "you"}:
        raise Discard
    if agent.noun == subject.noun or theme.noun in (subject.noun, "I", "you", "we"):
        raise Discard
    second = replace(first, roles={"agent": subject, "theme": theme}, negated=True)
    return Coordination("but", first, second)


def draw_and(s: Sampler) -> Coordination:
    """Draw two things that one person did; German says a common auxiliary once."""
    verbs = two_routines(s)
    first = draw_clause(s, verbs[0], "past", plain=True)
    agent = first.roles["agent"]
    second = draw_clause(s, verbs[1], "past", plain=True, agent=agent)
    german = [lexicon("verbs")[verb]["de"] for verb in verbs]
    same = german[0].get("auxiliary") == german[1].get("auxiliary")
    rule = "elided" if same else "shared"
    return Coordination("and", first, replace(second, rule=rule))


def draw_and_it(s: Sampler) -> Coordination:
    """Draw two things that two people did to one thing, named once."""
    first = draw_clause(s, s.pick(verbs_of("", "past")), "past", plain=True)
    theme = first.roles.get("theme")
    if theme is None or "consumes" in lexicon("verbs")[first.verb]:
        raise Discard
    verb = s.pick(
        verb
        for verb in verbs_of("", "past")
        if fits(theme, lexicon("verbs")[verb]["roles"].get("theme", ""))
        and verb != first.verb
    )
    second = draw_clause(s, verb, "past", plain=True, theme=pronoun_for(theme))
    others = {*heads(first), "he", "she", "they"}
    if second.roles["agent"].noun in others:
        raise Discard
    return Coordination("and", first, second)


KINDS = {
    draw_statement: 24,
    draw_question: 8,
    draw_wh: 9,
    draw_description: 7,
    draw_passive: 5,
    draw_existence: 2,
    draw_reason: 12,
    draw_sequence: 4,
    draw_meanwhile: 4,
    draw_condition: 5,
    draw_that: 7,
    draw_infinitive: 5,
    draw_purpose: 9,
    draw_relative: 9,
    draw_but: 7,
    draw_and: 4,
    draw_and_it: 7,
}


def derive(s: Sampler) -> Clause | Coordination | None:
    """Draw a derivation, or None where the draw came to nothing."""
    s.surprise = 0.0
    try:
        return s.weighted(KINDS)(s)
    except Discard:
        return None


SPLITS = {"train": range(90), "dev": range(90, 95), "test": range(95, 100)}


def concepts(node: Node) -> set[str]:
    """Return a derivation's nouns, verbs and adjectives, a word's senses as one."""
    if isinstance(node, Coordination):
        return concepts(node.first) | concepts(node.second)
    if isinstance(node, Phrase):
        noun = {node.noun} if node.noun in lexicon("nouns") else set()
        found = (noun - set(nouns_of("name"))) | set(node.adjectives)
        parts = [node.relative, node.also]
    else:
        found = {node.verb.split(".")[0], *node.predicate[:1]}
        parts = [*node.roles.values(), node.than, node.before, node.after]
    return found.union(*(concepts(part) for part in parts if part))


def split_of(derivation: Clause | Coordination) -> str:
    """Return the split a derivation belongs to: a hash of its concepts decides."""
    text = " ".join(sorted(concepts(derivation)))
    bucket = (
        int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") % 100
    )
    return next(split for split, buckets in SPLITS.items() if bucket in buckets)


def generate(split: str, count: int, seed: int = 1) -> list[Example]:
    """Return `count` examples of a split, "train", "dev" or "test" (5.1).

    No sentence of either language comes twice. Equal arguments give equal examples on
    every machine, and a larger count only adds to them. Raises ValueError for an
    unknown split, a negative count, or a count that the grammar cannot fill.
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}, only {', '.join(SPLITS)}")
    if count < 0:
        raise ValueError(f"a count of {count} examples is negative")
    sampler, examples, seen, idle = Sampler(f"{split} {seed}"), [], set(), 0
    while len(examples) < count:
        idle += 1
        if idle > 10_000:
            raise ValueError(f"{split} ran dry at {len(examples)} of {count} examples")
        derivation = derive(sampler)
        if derivation is None or split_of(derivation) != split:
            continue
        new = example(derivation)
        words = sum(token[0].isalpha() for token in new.english_tokens)
        if 5 <= words <= 20 and not seen & {new.english, new.german}:
            examples.append(new)
            seen |= {new.english, new.german}
            idle = 0
    return examples


@functools.cache
def glossary() -> dict[str, str]:
    """Return a German form for each English form of the lexicon (5.1)."""
    found = dict(lexicon("closed")["glosses"])
    for name, noun in lexicon("nouns").items():
        for number in ("sg", "pl") if "pl" in noun["de"] else ("sg",):
            found.setdefault(
                english_noun(name, number), german_noun(name, "nom", number)
            )
    for entry in lexicon("adjectives").values():
        for form in ("base", "comparative"):
            english, german = (entry[language].get(form) for language in ("en", "de"))
            found.setdefault(str(english).split()[-1], german)
    for entry in lexicon("verbs").values():
        english, german = entry["en"], entry["de"]
        prefix = german.get("prefix", "")
        found.setdefault(english["base"], prefix + german["base"])
        finite = english_finite(english, "present", "3sg").form
        found.setdefault(finite, prefix + german_present(german, "er"))
        found.setdefault(english_form(english, "ing"), prefix + german["base"])
        for form in ("past", "participle"):
            found.setdefault(english_form(english, form), german_participle(german))
    for entry in lexicon("adverbs").values():
        german = {
            token.split("/")[2]: token.split("/")[0] for token in entry["de"].split()
        }
        for form, _, number in (token.split("/") for token in entry["en"].split()):
            found.setdefault(form, german[number])
    return found


def word_by_word(pair: Example) -> str:
    """Return the English sentence, each word looked up and left in its place (5.1)."""
    first, *others = pair.english_tokens
    lowered = first if first in glossary() else first[0].lower() + first[1:]
    words = [lowered if lowered in glossary() else first, *others]
    glosses = [glossary().get(word, word) for word in words]
    return detokenised(
        [glosses[0][0].upper() + glosses[0][1:], *filter(None, glosses[1:])]
    )
