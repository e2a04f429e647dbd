/*
 * cares asks c-ares, as programs do that link it. Its questions and answers are those of resolve.c, of which it has
 * this one:
 *
 *   host NAME    the addresses of a name, by ares_getaddrinfo
 */
#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>

#define MAX_ANSWERS 64
#define MAX_NAME 256

static char answers[MAX_ANSWERS][INET6_ADDRSTRLEN];
static int count;
static const char *problem;

static void found(void *arg, int status, int timeouts, struct ares_addrinfo *list)
{
	(void)arg, (void)timeouts;
	problem = status == ARES_SUCCESS ? NULL : status == ARES_ENOTFOUND ? "none" : status == ARES_ENODATA ? "nodata" : "again";
	for (struct ares_addrinfo_node *n = list == NULL ? NULL : list->nodes; n != NULL && count < MAX_ANSWERS; n = n->ai_next) {
		const void *addr = n->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)n->ai_addr)->sin_addr
							   : (void *)&((struct sockaddr_in6 *)n->ai_addr)->sin6_addr;
		inet_ntop(n->ai_family, addr, answers[count++], INET6_ADDRSTRLEN);
	}
	ares_freeaddrinfo(list);
}

/* run returns when no query is outstanding. */
static void run(ares_channel channel)
{
	for (;;) {
		fd_set readers, writers;
		struct timeval space;
		FD_ZERO(&readers);
		FD_ZERO(&writers);
		int fds = ares_fds(channel, &readers, &writers);
		if (fds == 0)
			return;
		select(fds, &readers, &writers, NULL, ares_timeout(channel, NULL, &space));
		ares_process(channel, &readers, &writers);
	}
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

int main(void)
{
	char line[MAX_NAME + 16], name[MAX_NAME];
	ares_channel channel;
	struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS || ares_init(&channel) != ARES_SUCCESS) {
		fprintf(stderr, "cares: the library does not start\n");
		return 1;
	}
	while (fgets(line, sizeof line, stdin) != NULL) {
		if (sscanf(line, "host %255s", name) != 1) {
			fprintf(stderr, "cares: not a question: %s", line);
			return 1;
		}
		count = 0;
		problem = "again";
		ares_getaddrinfo(channel, name, NULL, &hints, found, NULL);
		run(channel);
		printf("host %s %c", name, problem == NULL ? '=' : '!');
		if (problem != NULL)
			printf(" %s", problem);
		qsort(answers, problem == NULL ? count : 0, sizeof answers[0], compare);
		for (int i = 0; problem == NULL && i < count; i++)
			if (i == 0 || strcmp(answers[i], answers[i - 1]) != 0)
				printf(" %s", answers[i]);
		putchar('\n');
		fflush(stdout);
	}
	return ferror(stdin) != 0;
}
