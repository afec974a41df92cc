/* Reads JSON objects into Arrow columns: the rows that it surely understands, and only those.
 *
 * In: texts (UTF-8, an Arrow string array) and the tree of the keys that are read. Out: a column per field, and which rows are proven.
 * A proven row holds what DuckDB's json_transform reads of it, and no rule of parse rejects it. In any doubt a row is left unproven, null
 * in every column: a fault of any kind, an escape in a key, an integer -0, a number in a JSON text whose spelling may not be the canonical
 * one, deep nesting, very many keys. So no reason for a rejection is given here.
 *
 * Nothing outlives a call but the columns; calls may run at the same time. No byte outside of the texts' buffer is read.
 */

#include "text.h"
#include "columns.h"

#include <float.h>
#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

enum { MAX_NODES = 4096, MAX_KEYS = 4096, RESET_KEYS = 1024, MAX_PROBES = 32, MAX_NUMBER = 64 };
enum fault { NONE = 0, OUT_OF_MEMORY = 1, INVALID = 2 };

/* The keys that are read. Parents come first, node 0 is the text's object; slot -1 where only members are read. */
typedef struct {
    int32_t key, key_bytes, parent, slot;
} node_spec;

/* The slots of a field: the second one, or -1, counts where the first is absent or null. */
typedef struct {
    int32_t kind, first, second;
} field_spec;

typedef struct {
    const node_spec *nodes;
    const field_spec *fields;
    const uint8_t *keys;
    int32_t n_nodes, n_fields, n_slots;
} tree_spec;

/* `rows` texts from index `first` of an Arrow string array; `valid` may be NULL, `size` is that of the buffer `bytes`. */
typedef struct {
    const uint8_t *valid, *offsets, *bytes;
    int64_t size, first, rows;
} text_array;

/* A key that has occurred in an object, or is looked for there; `next`: which followed it last; `row`: where it occurred last. */
typedef struct {
    const uint8_t *text;
    uint32_t bytes, next;
    int32_t node;
    int64_t row;
} key_entry;

/* The keys of one object: `first` was the first of them last time, the first `known` ones are read; `table` has indices + 1. */
typedef struct {
    key_entry *entries;
    uint16_t *table;
    uint32_t count, known, room, mask, first;
} key_set;

typedef struct {
    int32_t slot;
    key_set *keys; /* NULL unless members are read */
} node;

typedef struct {
    bounds in;
    int64_t row;
    node *nodes;
    key_set *sets; /* a node's is of the same index */
    slot *slots;
    column *columns;
    locale_t locale;
    enum fault fault;
} reader;

static const uint8_t *read_integer(const reader *r, const uint8_t *p, slot *v) {
    number n;
    int bits = 8 * (int)WIDTHS[v->kind];
    const uint8_t *stop = read_number(p, r->in.end, &n);
    if (!stop || !n.is_integer || n.digits > 20 || (n.is_negative && !n.digits)) return NULL;
    uint64_t value = n.mantissa;
    if (n.digits == 20 && (__builtin_mul_overflow(value, (uint64_t)10, &value) || __builtin_add_overflow(value, (uint64_t)n.last, &value)))
        return NULL;
    if (v->kind >= UINT8) {
        if (n.is_negative || (bits < 64 && value >> bits)) return NULL;
        v->as.integer = (int64_t)value;
        return stop;
    }
    uint64_t limit = (uint64_t)1 << (bits - 1);
    if (value > limit || (value == limit && !n.is_negative)) return NULL;
    v->as.integer = (int64_t)(n.is_negative ? 0 - value : value);
    return stop;
}

static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static bool by_library(reader *r, const uint8_t *p, size_t bytes, double *value) {
    char text[MAX_NUMBER + 1];
    if (bytes > MAX_NUMBER) return false;
    if (!r->locale && !(r->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0))) return false;
    memcpy(text, p, bytes);
    text[bytes] = 0;
    *value = strtod_l(text, NULL, r->locale);
    return true;
}

static const uint8_t *read_float(reader *r, const uint8_t *p, slot *v) {
    number n;
    double value;
    const uint8_t *stop = read_number(p, r->in.end, &n);
    if (!stop || (n.is_integer && n.is_negative && !n.digits)) return NULL;
    int32_t exponent = n.exponent - n.fraction;
    bool is_exact = n.digits <= 19 && n.mantissa <= (uint64_t)1 << 53;
    /* The engine converts an integer to float32 in one rounding, here there are two. */
    if (v->kind == FLOAT32 && n.is_integer && !is_exact) return NULL;
    if (is_exact && exponent >= -22 && exponent <= 22 && FLT_EVAL_METHOD == 0) {
        /* Both operands are exact, so the one operation rounds right (Clinger 1990). */
        value = exponent < 0 ? (double)n.mantissa / POWERS[-exponent] : (double)n.mantissa * POWERS[exponent];
        if (n.is_negative) value = -value;
    } else if (!by_library(r, p, (size_t)(stop - p), &value)) {
        return NULL;
    }
    if (!isfinite(value) || (v->kind == FLOAT32 && !isfinite((float)value))) return NULL;
    v->as.number = value;
    return stop;
}

/* p: at the value, which is not null. */
static const uint8_t *read_slot(reader *r, const uint8_t *p, slot *v) {
    const uint8_t *stop = NULL;
    unsigned marks = 0;
    v->is_present = true;
    switch (v->kind) {
        case STRING:
            if (*p != '"' || !(p = read_string(&r->in, (v->text = p + 1), &stop, &marks))) return NULL;
            v->bytes = (size_t)(stop - v->text);
            break;
        case BOOLEAN:
            v->as.integer = *p == 't';
            return *p == 't' ? read_word(p, r->in.end, "true", 4) : read_word(p, r->in.end, "false", 5);
        case FLOAT32: case FLOAT64: return read_float(r, p, v);
        case ARRAY: case OBJECT: case DECIMAL: case ANY:
            if (v->kind == DECIMAL && *p != '"' && *p != '-' && !is_digit(p, r->in.end)) return NULL;
            if ((v->kind == ARRAY && *p != '[') || (v->kind == OBJECT && *p != '{')) return NULL;
            v->text = p;
            if (!(p = read_value(&r->in, p, 0, true, &marks))) return NULL;
            v->bytes = (size_t)(p - v->text);
            break;
        default: return read_integer(r, p, v);
    }
    v->marks = (uint8_t)marks;
    return p;
}

static uint32_t hash_of(const uint8_t *p, size_t bytes) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001B3u;
    return (uint32_t)(hash >> 32 ^ hash);
}

static void file_entry(key_set *keys, uint32_t index) {
    uint32_t place = hash_of(keys->entries[index].text, keys->entries[index].bytes) & keys->mask;
    while (keys->table[place]) place = (place + 1) & keys->mask;
    keys->table[place] = (uint16_t)(index + 1);
}

static bool grow(key_set *keys) {
    uint32_t room = keys->room ? keys->room * 2 : 32;
    key_entry *entries = realloc(keys->entries, room * sizeof *entries);
    if (!entries) return false;
    keys->entries = entries;
    uint16_t *table = calloc(room * 4, sizeof *table);
    if (!table) return false;
    free(keys->table);
    keys->table = table;
    keys->room = room;
    keys->mask = room * 4 - 1;
    for (uint32_t i = 0; i < keys->count; i++) file_entry(keys, i);
    return true;
}

static bool add_key(key_set *keys, const uint8_t *text, uint32_t bytes, int32_t child) {
    if (keys->count == keys->room && !grow(keys)) return false;
    keys->entries[keys->count] = (key_entry){.text = text, .bytes = bytes, .node = child, .row = -1};
    file_entry(keys, keys->count++);
    return true;
}

/* Forget the keys that are not read, which a stream may invent for ever. Between rows only. */
static void forget_keys(key_set *keys) {
    keys->count = keys->known;
    memset(keys->table, 0, (keys->mask + 1) * sizeof *keys->table);
    for (uint32_t i = 0; i < keys->count; i++) file_entry(keys, i);
}

/* The index of the key at p, after its quote, which is learned if need be; -1 leaves the row unproven. */
static int64_t find_key(reader *r, key_set *keys, const uint8_t *p, uint32_t expected, const uint8_t **after) {
    if (expected < keys->count) {
        const key_entry *e = &keys->entries[expected];
        if ((size_t)(r->in.end - p) > e->bytes && p[e->bytes] == '"' && memcmp(p, e->text, e->bytes) == 0) {
            *after = p + e->bytes + 1;
            return expected;
        }
    }
    const uint8_t *stop = plain_part(&r->in, p);
    if (stop >= r->in.end || *stop != '"' || stop - p > UINT16_MAX) return -1;
    size_t bytes = (size_t)(stop - p);
    *after = stop + 1;
    uint32_t place = hash_of(p, bytes) & keys->mask;
    for (int probes = 0; keys->table[place]; place = (place + 1) & keys->mask) {
        const key_entry *e = &keys->entries[keys->table[place] - 1];
        if (e->bytes == bytes && memcmp(e->text, p, bytes) == 0) return keys->table[place] - 1;
        /* Keys made to collide must not take quadratic time. */
        if (++probes > MAX_PROBES) return -1;
    }
    if (keys->count >= MAX_KEYS) return -1;
    if (!add_key(keys, p, (uint32_t)bytes, -1)) {
        r->fault = OUT_OF_MEMORY;
        return -1;
    }
    return keys->count - 1;
}

static const uint8_t *read_object(reader *r, const node *object, const uint8_t *p);

static const uint8_t *read_member(reader *r, const node *member, const uint8_t *p) {
    unsigned marks = 0;
    if (p >= r->in.end) return NULL;
    if (*p == 'n') return read_word(p, r->in.end, "null", 4);
    const uint8_t *after = NULL;
    if (member->slot >= 0 && !(after = read_slot(r, p, &r->slots[member->slot]))) return NULL;
    if (member->keys && *p == '{') return read_object(r, member, p + 1);
    return after ? after : read_value(&r->in, p, 0, false, &marks);
}

/* p: after the brace. No key twice. */
static const uint8_t *read_object(reader *r, const node *object, const uint8_t *p) {
    key_set *keys = object->keys;
    int64_t before = -1;
    unsigned marks = 0;
    p = skip_space(p, r->in.end, &marks);
    if (p < r->in.end && *p == '}') return p + 1;
    for (;;) {
        if (p >= r->in.end || *p != '"') return NULL;
        uint32_t expected = before < 0 ? keys->first : keys->entries[before].next;
        int64_t index = find_key(r, keys, p + 1, expected, &p);
        if (index < 0) return NULL;
        if (index != expected) *(before < 0 ? &keys->first : &keys->entries[before].next) = (uint32_t)index;
        key_entry *e = &keys->entries[index];
        if (e->row == r->row) return NULL;
        e->row = r->row;
        before = index;
        p = skip_space(p, r->in.end, &marks);
        if (p >= r->in.end || *p != ':') return NULL;
        p = skip_space(p + 1, r->in.end, &marks);
        p = e->node >= 0 ? read_member(r, &r->nodes[e->node], p) : read_value(&r->in, p, 0, false, &marks);
        if (!p) return NULL;
        p = skip_space(p, r->in.end, &marks);
        if (p >= r->in.end) return NULL;
        if (*p == '}') return p + 1;
        if (*p != ',') return NULL;
        p = skip_space(p + 1, r->in.end, &marks);
    }
}

static bool read_text(reader *r, const uint8_t *p) {
    unsigned marks = 0;
    p = skip_space(p, r->in.end, &marks);
    if (p >= r->in.end || *p != '{' || !(p = read_object(r, &r->nodes[0], p + 1))) return false;
    return skip_space(p, r->in.end, &marks) == r->in.end;
}

static bool open_reader(reader *r, const tree_spec *tree, int64_t rows) {
    r->nodes = calloc((size_t)tree->n_nodes, sizeof *r->nodes);
    r->sets = calloc((size_t)tree->n_nodes, sizeof *r->sets);
    r->slots = calloc((size_t)tree->n_slots, sizeof *r->slots);
    r->columns = calloc((size_t)tree->n_fields, sizeof *r->columns);
    if (!r->nodes || !r->sets || !r->slots || !r->columns) return false;
    r->nodes[0] = (node){.slot = -1};
    for (int32_t i = 1; i < tree->n_nodes; i++) {
        const node_spec *spec = &tree->nodes[i];
        r->nodes[i] = (node){.slot = spec->slot};
        r->nodes[spec->parent].keys = &r->sets[spec->parent];
        if (!add_key(&r->sets[spec->parent], tree->keys + spec->key, (uint32_t)spec->key_bytes, i)) return false;
    }
    for (int32_t i = 0; i < tree->n_nodes; i++) r->sets[i].known = r->sets[i].count;
    for (int32_t i = 0; i < tree->n_fields; i++) {
        const field_spec *field = &tree->fields[i];
        r->slots[field->first].kind = (uint8_t)field->kind;
        if (field->second >= 0) r->slots[field->second].kind = (uint8_t)field->kind;
        if (!open_column(&r->columns[i], field->kind, (size_t)rows)) return false;
    }
    return true;
}

static void close_reader(reader *r, const tree_spec *tree) {
    for (int32_t i = 0; r->columns && i < tree->n_fields; i++) close_column(&r->columns[i]);
    for (int32_t i = 0; r->sets && i < tree->n_nodes; i++) {
        free(r->sets[i].entries);
        free(r->sets[i].table);
    }
    free(r->nodes);
    free(r->sets);
    free(r->slots);
    free(r->columns);
    if (r->locale) freelocale(r->locale);
}

/* Make r->in the text at index `at`; false if its offsets lie outside of the buffer. */
static bool open_text(reader *r, const text_array *texts, int64_t at, const uint8_t **start) {
    int32_t range[2];
    memcpy(range, texts->offsets + at * (int64_t)sizeof *range, sizeof range);
    if (range[0] < 0 || range[1] < range[0] || range[1] > texts->size) return false;
    *start = texts->bytes + range[0];
    r->in.end = texts->bytes + range[1];
    return true;
}

static enum fault read_row(reader *r, const tree_spec *tree, const text_array *texts, int64_t row, uint8_t *is_proven) {
    int64_t at = texts->first + row;
    const uint8_t *start;
    for (int32_t i = 0; i < tree->n_slots; i++) r->slots[i].is_present = false;
    for (int32_t i = 0; i < tree->n_nodes; i++)
        if (r->sets[i].count > r->sets[i].known + RESET_KEYS) forget_keys(&r->sets[i]);
    r->row = row;
    *is_proven = texts->valid && !(texts->valid[at >> 3] >> (at & 7) & 1);
    if (!*is_proven) {
        if (!open_text(r, texts, at, &start)) return INVALID;
        *is_proven = read_text(r, start);
        if (r->fault) return r->fault;
    }
    for (int32_t i = 0; i < tree->n_fields; i++) {
        const slot *v = &r->slots[tree->fields[i].first];
        if (!v->is_present && tree->fields[i].second >= 0) v = &r->slots[tree->fields[i].second];
        if (!put(&r->columns[i], row, *is_proven && v->is_present ? v : NULL)) return OUT_OF_MEMORY;
    }
    return NONE;
}

/* `proven` takes a byte per row, 1 for a row that was read or null; `arrays` takes a column per field, which the caller releases. After a
 * fault there is nothing to release. */
__attribute__((visibility("default"))) int32_t tallyflow_read_json(const tree_spec *tree, const text_array *texts, uint8_t *proven,
                                                                   struct ArrowArray *arrays) {
    static const uint8_t NOTHING[1] = {0};
    if (tree->n_nodes < 2 || tree->n_nodes > MAX_NODES || texts->rows < 0) return INVALID;
    text_array from = *texts;
    if (!from.bytes) from.bytes = NOTHING, from.size = 0;
    reader r = {.in.readable = from.bytes + from.size};
    enum fault fault = open_reader(&r, tree, from.rows) ? NONE : OUT_OF_MEMORY;
    for (int64_t row = 0; !fault && row < from.rows; row++) fault = read_row(&r, tree, &from, row, &proven[row]);
    int32_t exported = 0;
    for (; !fault && exported < tree->n_fields; exported += !fault)
        if (!export_column(&r.columns[exported], from.rows, &arrays[exported])) fault = OUT_OF_MEMORY;
    while (fault && exported) release(&arrays[--exported]);
    close_reader(&r, tree);
    return (int32_t)fault;
}
