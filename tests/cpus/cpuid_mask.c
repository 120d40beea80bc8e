// Answers the `cpuid` instructions that masked.py replaced by `ud2`, with the bits of CPUID_MASK cleared.
//
// Preloaded into Python, so that its handler is there before the initialisers of ONNX Runtime ask for the features.
// CPUID_MASK is a list of LEAF.SUBLEAF:EAX,EBX,ECX,EDX; with the bits to clear, all in hexadecimal.
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

static struct { unsigned leaf, sub, clear[4]; } masks[8];
static int n_masks;

static void answer(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *reg = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)reg[REG_RIP];
    if (at[0] != 0x0f || at[1] != 0x0b) { // an instruction that this machine really lacks
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    unsigned leaf = (unsigned)reg[REG_RAX], sub = (unsigned)reg[REG_RCX], a, b, c, d;
    __cpuid_count(leaf, sub, a, b, c, d);
    for (int i = 0; i < n_masks; i++)
        if (leaf == masks[i].leaf && (leaf != 7 || sub == masks[i].sub)) { // the others' subleaf is whatever ecx holds
            a &= ~masks[i].clear[0];
            b &= ~masks[i].clear[1];
            c &= ~masks[i].clear[2];
            d &= ~masks[i].clear[3];
        }
    reg[REG_RAX] = a;
    reg[REG_RBX] = b;
    reg[REG_RCX] = c;
    reg[REG_RDX] = d;
    reg[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("CPUID_MASK");
    int length = 0;
    if (!text) return;
    for (; n_masks < 8; text += length, n_masks++) {
        unsigned *clear = masks[n_masks].clear;
        if (sscanf(text, "%x.%x:%x,%x,%x,%x;%n", &masks[n_masks].leaf, &masks[n_masks].sub, &clear[0], &clear[1],
                   &clear[2], &clear[3], &length) != 6)
            break;
    }
    struct sigaction action = {0};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, NULL);
}
