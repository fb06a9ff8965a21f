/* compiler.h - what the two compilers spell differently. */
#ifndef HP_COMPILER_H
#define HP_COMPILER_H

/* The next loop carries no dependence from one element to another. */
#ifdef __clang__
#define HP_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#define HP_UNROLL _Pragma("unroll 4")
#else
#define HP_IVDEP _Pragma("GCC ivdep")
#define HP_UNROLL _Pragma("GCC unroll 4")
#endif

#endif
