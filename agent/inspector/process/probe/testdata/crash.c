/* Ends in the way that its first argument names. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int zero;

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	struct rlimit none = {0, 0};

	setrlimit(RLIMIT_CORE, &none);
	if (!strcmp(how, "segv"))
		return *(volatile int *)0x1234;
	if (!strcmp(how, "fpe"))
		return 7 / zero;
	if (!strcmp(how, "ill"))
		__builtin_trap();
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "trap"))
		raise(SIGTRAP);
	if (!strcmp(how, "kill"))
		raise(SIGKILL);
	if (!strcmp(how, "term"))
		raise(SIGTERM);
	if (!strcmp(how, "quit"))
		raise(SIGQUIT);
	if (!strcmp(how, "many")) { /* argv[2] crashes of children, when told */
		if (read(0, (char[1]){0}, 1) < 0)
			return 1;
		for (int i = 0, n = atoi(argv[2]); i < n; i++) {
			pid_t child = fork();
			if (child == 0) { /* each under a name of its own */
				char name[16];

				snprintf(name, sizeof(name), "c%d", i);
				prctl(PR_SET_NAME, name);
				abort();
			}
			printf("c%d %d\n", i, (int)child);
			if (child < 0 || waitpid(child, 0, 0) != child)
				return 1;
		}
		fflush(stdout);
	}
	return !strcmp(how, "fail") ? 3 : 0;
}
