/* CRC-32C (magic 2) and CRC-32 (magic 0 and 1). Bits are reflected: the highest bit of a word is x^0. */
#ifndef KBATCH_CRC_H
#define KBATCH_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { KB_CRC32C, KB_CRC32 };

static const uint32_t kb_polynomials[2] = {0x82f63b78u, 0xedb88320u};

/* -- combining checksums */

/* kb_by_x4[which][b]: the bits b, times x^4. */
static uint32_t kb_by_x4[2][16];
/* kb_powers[which][i][d]: x^(8 * d * 16^i), what d * 16^i bytes multiply a checksum by. */
static uint32_t kb_powers[2][16][16];

static inline uint32_t kb_times_x(int which, uint32_t a) {
    return a >> 1 ^ (a & 1 ? kb_polynomials[which] : 0);
}

/* The product of two remainders, by four bits of `a` at a time. */
static uint32_t kb_multiply(int which, uint32_t a, uint32_t b) {
    uint32_t multiples[16] = {0};
    uint32_t product = 0;
    for (int bit = 8; bit; bit >>= 1, b = kb_times_x(which, b))
        multiples[bit] = b;
    for (int i = 3; i < 16; i++)
        multiples[i] = multiples[i & -i] ^ multiples[i & (i - 1)];
    for (int i = 0; i < 8; i++, a >>= 4)
        product = product >> 4 ^ kb_by_x4[which][product & 15] ^ multiples[a & 15];
    return product;
}

/* The share of A in the checksum of A || B, from the checksum of A and the length of B; one multiplication for each
   hexadecimal digit of the length that is not 0. crc(A || B) = shift(crc(A), length of B) ^ crc(B), because what a
   checksum is inverted with at its beginning and end cancels out. */
static uint32_t kb_crc_shift(int which, uint32_t crc, uint64_t nbytes) {
    for (int i = 0; nbytes; i++, nbytes >>= 4)
        if (nbytes & 15)
            crc = kb_multiply(which, crc, kb_powers[which][i][nbytes & 15]);
    return crc;
}

static void kb_crc_shift_init(void) {
    for (int which = 0; which < 2; which++) {
        uint32_t power = 0x80000000u >> 8;
        for (uint32_t bits = 0; bits < 16; bits++) {
            uint32_t shifted = bits;
            for (int i = 0; i < 4; i++)
                shifted = kb_times_x(which, shifted);
            kb_by_x4[which][bits] = shifted;
        }
        for (int i = 0; i < 16; i++) {
            kb_powers[which][i][0] = 0x80000000u;
            for (int d = 1; d < 16; d++)
                kb_powers[which][i][d] = kb_multiply(which, kb_powers[which][i][d - 1], power);
            power = kb_multiply(which, kb_powers[which][i][15], power);
        }
    }
}

#endif
