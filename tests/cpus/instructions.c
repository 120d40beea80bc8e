/* Counts the instructions that an emulated program runs, all threads together (docs/small-devices.md).

   cc -O2 -shared -fPIC -o instructions.so instructions.c
   qemu-aarch64 -cpu cortex-a76 -plugin ./instructions.so -L ROOT ROOT/usr/bin/python3 PROGRAM

   For a qemu with plugins, version 1 of their interface: Debian 12's qemu-user, not the static one. The package has
   no header, so the four functions are declared here. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stddef.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
int qemu_plugin_version = 1;
static uint64_t count;

typedef void (*tb_trans_cb)(plugin_id, struct qemu_plugin_tb *);
typedef void (*vcpu_udata_cb)(unsigned int, void *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, tb_trans_cb);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, vcpu_udata_cb, int, void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);

static void ran(unsigned int cpu, void *n) { __atomic_fetch_add(&count, (uint64_t)(uintptr_t)n, __ATOMIC_RELAXED); }
static void translated(plugin_id id, struct qemu_plugin_tb *tb) {
  qemu_plugin_register_vcpu_tb_exec_cb(tb, ran, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(tb));
}
static void ended(plugin_id id, void *p) { fprintf(stderr, "instructions %" PRIu64 "\n", count); }
int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
