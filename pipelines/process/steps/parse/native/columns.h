/* Columns of values, as Arrow arrays that own their memory. */

#include <math.h>
#include <stdlib.h>

/* https://arrow.apache.org/docs/format/CDataInterface.html */
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* In the order of native_reader.py. */
enum kind { STRING, BOOLEAN, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT32, FLOAT64, ARRAY, OBJECT, DECIMAL, ANY };
enum { KINDS = ANY + 1 };
static const size_t WIDTHS[KINDS] = {0, 0, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 0, 0, 0};

/* A value of the row that is being read. */
typedef struct {
    const uint8_t *text;
    size_t bytes;
    union {
        int64_t integer;
        double number;
    } as;
    uint8_t kind, marks;
    bool is_present;
} slot;

typedef struct {
    int kind;
    uint8_t *values, *valid;
    int32_t *offsets;
    size_t used, room;
    int64_t nulls;
} column;

static bool put_text(column *c, const slot *v) {
    if (c->used + v->bytes > INT32_MAX) return false;
    if (c->used + v->bytes > c->room) {
        size_t room = c->room * 2 > c->used + v->bytes ? c->room * 2 : c->used + v->bytes;
        uint8_t *values = realloc(c->values, room);
        if (!values) return false;
        c->values = values;
        c->room = room;
    }
    uint8_t *out = c->values + c->used;
    if (v->kind == STRING && v->marks & ESCAPE) {
        out = put_unescaped(out, v->text, v->text + v->bytes);
    } else if (v->kind != STRING && v->marks & (SPACE | RESPELLED)) {
        out = put_minified(out, v->text, v->text + v->bytes);
    } else {
        memcpy(out, v->text, v->bytes);
        out += v->bytes;
    }
    c->used = (size_t)(out - c->values);
    return true;
}

static bool put(column *c, int64_t row, const slot *v) {
    if (v) c->valid[row >> 3] |= (uint8_t)(1 << (row & 7));
    c->nulls += !v;
    switch (c->kind) {
        case BOOLEAN:
            if (v && v->as.integer) c->values[row >> 3] |= (uint8_t)(1 << (row & 7));
            return true;
        case FLOAT32: ((float *)c->values)[row] = v ? (float)v->as.number : 0; return true;
        case FLOAT64: ((double *)c->values)[row] = v ? v->as.number : 0; return true;
        case STRING: case ARRAY: case OBJECT: case DECIMAL: case ANY:
            if (v && !put_text(c, v)) return false;
            c->offsets[row + 1] = (int32_t)c->used;
            return true;
        default: {
            /* The low bytes of a two's complement are the narrower number. */
            int64_t value = v ? v->as.integer : 0;
            memcpy(c->values + (size_t)row * WIDTHS[c->kind], &value, WIDTHS[c->kind]);
            return true;
        }
    }
}

static bool open_column(column *c, int kind, size_t rows) {
    bool is_text = WIDTHS[kind] == 0 && kind != BOOLEAN;
    c->kind = kind;
    c->room = is_text ? rows * 16 + 64 : kind == BOOLEAN ? rows / 8 + 1 : rows * WIDTHS[kind] + 1;
    c->values = calloc(c->room, 1);
    c->valid = calloc(rows / 8 + 1, 1);
    c->offsets = is_text ? calloc(rows + 1, sizeof *c->offsets) : NULL;
    return c->values && c->valid && (c->offsets || !is_text);
}

static void close_column(column *c) {
    free(c->values);
    free(c->valid);
    free(c->offsets);
}

static void release(struct ArrowArray *array) {
    for (int64_t i = 0; i < array->n_buffers; i++) free((void *)array->buffers[i]);
    free((void *)array->buffers);
    array->release = NULL;
}

/* Pass the column's memory on. */
static bool export_column(column *c, int64_t rows, struct ArrowArray *array) {
    const void **buffers = calloc(3, sizeof *buffers);
    if (!buffers) return false;
    if (c->offsets && c->used < c->room) {
        uint8_t *values = realloc(c->values, c->used ? c->used : 1);
        if (values) c->values = values;
    }
    if (!c->nulls) {
        free(c->valid);
        c->valid = NULL;
    }
    buffers[0] = c->valid;
    buffers[1] = c->offsets ? (void *)c->offsets : c->values;
    buffers[2] = c->offsets ? c->values : NULL;
    *array = (struct ArrowArray){
        .length = rows, .null_count = c->nulls, .n_buffers = c->offsets ? 3 : 2, .buffers = buffers, .release = release};
    *c = (column){0};
    return true;
}
