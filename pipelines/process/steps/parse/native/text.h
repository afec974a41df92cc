/* JSON texts: reads strings, numbers and values, and writes what they mean.
 *
 * A function that reads takes the place where something begins, and returns the place after it, or NULL where it is not surely valid.
 */

#define _GNU_SOURCE /* strtod_l */

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "plain_part finds the first marked byte of a block by counting zeros from the low end"
#endif

enum { MAX_DEPTH = 64 };

/* What was seen in a value: a backslash, an escape that no writer of JSON would choose, space between tokens. */
enum { ESCAPE = 1, RESPELLED = 2, SPACE = 4 };

typedef struct {
    const uint8_t *end, *readable; /* the ends of the text and of the memory that it lies in */
} bounds;

typedef uint8_t block __attribute__((vector_size(16)));
typedef uint64_t halves __attribute__((vector_size(16)));

static inline const uint8_t *skip_space(const uint8_t *p, const uint8_t *end, unsigned *marks) {
    if (p < end && *p > ' ') return p;
    const uint8_t *start = p;
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) p++;
    if (p != start) *marks |= SPACE;
    return p;
}

/* The first quote, backslash or control character; `end` if there is none. */
static inline const uint8_t *plain_part(const bounds *in, const uint8_t *p) {
    while (in->readable - p >= 16) {
        block bytes;
        memcpy(&bytes, p, 16);
        halves found = (halves)((bytes == '"') | (bytes == '\\') | (bytes < ' '));
        if (found[0]) {
            p += __builtin_ctzll(found[0]) >> 3;
            return p < in->end ? p : in->end;
        }
        if (found[1]) {
            p += 8 + (__builtin_ctzll(found[1]) >> 3);
            return p < in->end ? p : in->end;
        }
        p += 16;
        if (p >= in->end) return in->end;
    }
    while (p < in->end && *p != '"' && *p != '\\' && *p >= ' ') p++;
    return p;
}

static int32_t four_digits(const uint8_t *p, const uint8_t *end) {
    if (end - p < 4) return -1;
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* p: after `\u`. A surrogate must be half of a pair. */
static const uint8_t *code_point(const uint8_t *p, const uint8_t *end, uint32_t *code) {
    int32_t first = four_digits(p, end);
    if (first < 0 || (first >= 0xDC00 && first <= 0xDFFF)) return NULL;
    *code = (uint32_t)first;
    p += 4;
    if (first < 0xD800 || first > 0xDBFF) return p;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL;
    int32_t second = four_digits(p + 2, end);
    if (second < 0xDC00 || second > 0xDFFF) return NULL;
    *code = 0x10000 + ((uint32_t)(first - 0xD800) << 10) + (uint32_t)(second - 0xDC00);
    return p + 6;
}

/* p: after the opening quote; the place of the closing one is *stop. */
static inline const uint8_t *read_string(const bounds *in, const uint8_t *p, const uint8_t **stop, unsigned *marks) {
    for (;;) {
        p = plain_part(in, p);
        if (p >= in->end || *p < ' ') return NULL;
        if (*p == '"') {
            *stop = p;
            return p + 1;
        }
        *marks |= ESCAPE;
        if (in->end - p < 2) return NULL;
        uint32_t code;
        switch (p[1]) {
            case '/': *marks |= RESPELLED; /* fall through */
            case '"': case '\\': case 'b': case 'f': case 'n': case 'r': case 't': p += 2; break;
            case 'u':
                *marks |= RESPELLED;
                if (!(p = code_point(p + 2, in->end, &code))) return NULL;
                break;
            default: return NULL;
        }
    }
}

static inline bool is_digit(const uint8_t *p, const uint8_t *end) { return p < end && *p >= '0' && *p <= '9'; }

typedef struct {
    uint64_t mantissa; /* of the first 19 digits that count */
    int32_t digits;    /* those that count: without leading zeros */
    int32_t fraction, zeros; /* digits after the point; zeros before the first digit that counts, if the integer part is 0 */
    int32_t exponent;
    bool is_negative, is_integer, has_exponent;
    uint8_t last;
} number;

static inline void add_digit(number *n, uint8_t digit) {
    n->last = digit;
    if (n->digits || digit) {
        if (n->digits < 19) n->mantissa = n->mantissa * 10 + digit;
        n->digits++;
    }
}

static inline const uint8_t *read_number(const uint8_t *p, const uint8_t *end, number *n) {
    *n = (number){.is_integer = true};
    if (end - p > INT_MAX / 2) return NULL;
    if (p < end && *p == '-') {
        n->is_negative = true;
        p++;
    }
    if (!is_digit(p, end)) return NULL;
    if (*p == '0') {
        p++;
    } else {
        while (is_digit(p, end)) add_digit(n, *p++ - '0');
    }
    if (p < end && *p == '.') {
        n->is_integer = false;
        p++;
        if (!is_digit(p, end)) return NULL;
        for (; is_digit(p, end); p++, n->fraction++) {
            add_digit(n, *p - '0');
            n->zeros += !n->digits;
        }
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        n->is_integer = false;
        n->has_exponent = true;
        p++;
        bool is_negative = p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        if (!is_digit(p, end)) return NULL;
        for (; is_digit(p, end); p++)
            if (n->exponent < 100000) n->exponent = n->exponent * 10 + (*p - '0');
        if (is_negative) n->exponent = -n->exponent;
    }
    return p;
}

/* Whether the canonical spelling of a number, in a JSON text, is the one that stands there. At most 15 digits that count: they come back
 * from a double as they were. */
static bool is_canonical(const number *n) {
    if (n->has_exponent) return false;
    if (n->is_integer) return n->digits <= 18 && (n->digits || !n->is_negative);
    return n->digits <= 15 && n->zeros <= 4 && (n->last || n->fraction == 1);
}

/* Any JSON value. `is_read`: its text is; its numbers must be finite and canonical. */
static const uint8_t *read_value(const bounds *in, const uint8_t *p, int depth, bool is_read, unsigned *marks);

static inline const uint8_t *read_word(const uint8_t *p, const uint8_t *end, const char *word, size_t bytes) {
    return (size_t)(end - p) >= bytes && memcmp(p, word, bytes) == 0 ? p + bytes : NULL;
}

static const uint8_t *read_nested(const bounds *in, const uint8_t *p, int depth, bool is_read, unsigned *marks) {
    uint8_t closing = *p == '{' ? '}' : ']';
    const uint8_t *stop;
    if (depth >= MAX_DEPTH) return NULL;
    p = skip_space(p + 1, in->end, marks);
    if (p < in->end && *p == closing) return p + 1;
    for (;;) {
        if (closing == '}') {
            if (p >= in->end || *p != '"' || !(p = read_string(in, p + 1, &stop, marks))) return NULL;
            p = skip_space(p, in->end, marks);
            if (p >= in->end || *p != ':') return NULL;
            p = skip_space(p + 1, in->end, marks);
        }
        if (!(p = read_value(in, p, depth + 1, is_read, marks))) return NULL;
        p = skip_space(p, in->end, marks);
        if (p >= in->end) return NULL;
        if (*p == closing) return p + 1;
        if (*p != ',') return NULL;
        p = skip_space(p + 1, in->end, marks);
    }
}

static const uint8_t *read_value(const bounds *in, const uint8_t *p, int depth, bool is_read, unsigned *marks) {
    const uint8_t *stop;
    number n;
    if (p >= in->end) return NULL;
    switch (*p) {
        case '"': return read_string(in, p + 1, &stop, marks);
        case '{': case '[': return read_nested(in, p, depth, is_read, marks);
        case 't': return read_word(p, in->end, "true", 4);
        case 'f': return read_word(p, in->end, "false", 5);
        case 'n': return read_word(p, in->end, "null", 4);
        default:
            p = read_number(p, in->end, &n);
            return p && is_read && !is_canonical(&n) ? NULL : p;
    }
}

static uint8_t *put_utf8(uint8_t *out, uint32_t code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *out++ = (uint8_t)(0xF0 | code >> 18);
        *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* The character of an escape that was checked; p: after its backslash. */
static const uint8_t *unescaped(const uint8_t *p, const uint8_t *end, uint32_t *code) {
    switch (*p) {
        case 'b': *code = '\b'; break;
        case 'f': *code = '\f'; break;
        case 'n': *code = '\n'; break;
        case 'r': *code = '\r'; break;
        case 't': *code = '\t'; break;
        case 'u': return code_point(p + 1, end, code);
        default: *code = *p;
    }
    return p + 1;
}

static uint8_t *put_unescaped(uint8_t *out, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        const uint8_t *escape = memchr(p, '\\', (size_t)(end - p));
        size_t plain = (size_t)((escape ? escape : end) - p);
        memcpy(out, p, plain);
        out += plain;
        if (!escape) break;
        uint32_t code;
        p = unescaped(escape + 1, end, &code);
        out = put_utf8(out, code);
    }
    return out;
}

/* A character as a JSON text spells it. */
static uint8_t *put_escaped(uint8_t *out, uint32_t code) {
    static const char SHORT[] = "\b\f\n\r\t\"\\", LETTERS[] = "bfnrt\"\\", DIGITS[] = "0123456789ABCDEF";
    const char *found = code && code < 0x80 ? strchr(SHORT, (int)code) : NULL;
    if (!found && code >= ' ') return put_utf8(out, code);
    *out++ = '\\';
    if (found) {
        *out++ = (uint8_t)LETTERS[found - SHORT];
        return out;
    }
    memcpy(out, "u00", 3);
    out[3] = (uint8_t)DIGITS[code >> 4];
    out[4] = (uint8_t)DIGITS[code & 15];
    return out + 5;
}

/* A JSON text that was checked, without spaces and in its canonical spelling. */
static uint8_t *put_minified(uint8_t *out, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        if (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r') {
            p++;
            continue;
        }
        bool is_string = *p == '"';
        *out++ = *p++;
        while (is_string) {
            if (*p == '\\') {
                uint32_t code;
                p = unescaped(p + 1, end, &code);
                out = put_escaped(out, code);
                continue;
            }
            is_string = *p != '"';
            *out++ = *p++;
        }
    }
    return out;
}
