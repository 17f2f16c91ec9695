/* Computes for ever, or as often as told, three quarters of the time in hot
 * and one in cool. It prints where they are first. */
#include <stdio.h>
#include <stdlib.h>

static volatile unsigned long sink;

__attribute__((noinline)) static void hot(unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		sink += i * i;
}

__attribute__((noinline)) void cool(unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		sink += i * i;
}

__attribute__((noinline)) static void work(void)
{
	hot(300000);
	cool(100000);
	sink++; /* no tail call: work stays on the stack */
}

int main(int argc, char **argv)
{
	printf("%p %p\n", (void *)hot, (void *)cool);
	fflush(stdout);
	if (argc > 1 && argv[1][0] == 'w') /* wait */
		return getchar() == EOF ? 0 : 1;
	for (long n = argc > 1 ? atol(argv[1]) : -1; n != 0; n--)
		work();
	return 0;
}
