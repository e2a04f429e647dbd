/*
 * resolve asks the C library that it is built against, as any program in a pod does.
 * It reads questions from standard input, one a line, and writes a line for each:
 *
 *   host NAME    the addresses of a name, by getaddrinfo
 *   canon NAME   its canonical name, by getaddrinfo
 *   name ADDR    the name of an address, by getnameinfo
 *   srv NAME     PRIORITY:WEIGHT:PORT:TARGET of its SRV records, by res_search
 *
 *   QUESTION = ANSWER ...    the answers, each once, sorted
 *   QUESTION ! none          there is no such name
 *   QUESTION ! nodata        there is, without such records, as far as the library tells
 *   QUESTION ! again         nobody answered, or in a way that tells nothing
 *
 * It ends with 1 at the first line that it does not understand.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Far more answers than fit into one message, 65,535 bytes with 16 for each address. */
#define MAX_ANSWERS 4096
/* A name of 255 bytes, each written as four characters, and the three numbers. */
#define MAX_TEXT 1100

static char answers[MAX_ANSWERS][MAX_TEXT];
static int count;

static void add(const char *text)
{
	for (int i = 0; i < count; i++)
		if (strcmp(answers[i], text) == 0)
			return;
	if (count < MAX_ANSWERS)
		snprintf(answers[count++], MAX_TEXT, "%s", text);
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* gai names what getaddrinfo and getnameinfo give instead of an answer. */
static const char *gai(int code)
{
	switch (code) {
	case 0:
		return NULL;
	case EAI_NONAME:
		return "none";
#ifdef EAI_NODATA
	case EAI_NODATA:
		return "nodata";
#endif
	case EAI_AGAIN:
		return "again";
	default:
		return gai_strerror(code);
	}
}

static const char *host(const char *name, int canonical)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = canonical ? AI_CANONNAME : 0};
	struct addrinfo *list = NULL;
	int code = getaddrinfo(name, NULL, &hints, &list);
	if (code != 0)
		return gai(code);
	for (struct addrinfo *a = list; a != NULL; a = a->ai_next) {
		char text[MAX_TEXT];
		if (canonical) {
			if (a->ai_canonname != NULL)
				add(a->ai_canonname);
		} else if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0) {
			add(text);
		}
	}
	freeaddrinfo(list);
	return NULL;
}

static const char *name(const char *addr)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	char text[MAX_TEXT];
	int code;
	if (inet_pton(AF_INET, addr, &v4.sin_addr) == 1)
		code = getnameinfo((struct sockaddr *)&v4, sizeof v4, text, sizeof text, NULL, 0, NI_NAMEREQD);
	else if (inet_pton(AF_INET6, addr, &v6.sin6_addr) == 1)
		code = getnameinfo((struct sockaddr *)&v6, sizeof v6, text, sizeof text, NULL, 0, NI_NAMEREQD);
	else
		return "no address";
	if (code == 0)
		add(text);
	return gai(code);
}

static const char *srv(const char *name)
{
	static unsigned char reply[65535];
	ns_msg message;
	int size = res_search(name, ns_c_in, ns_t_srv, reply, sizeof reply);
	if (size < 0)
		return h_errno == HOST_NOT_FOUND ? "none" : h_errno == NO_DATA ? "nodata" : "again";
	if (ns_initparse(reply, size, &message) != 0)
		return "again";
	for (int i = 0; i < ns_msg_count(message, ns_s_an); i++) {
		ns_rr record;
		char target[MAX_TEXT - 20], text[MAX_TEXT];
		if (ns_parserr(&message, ns_s_an, i, &record) != 0)
			return "again";
		if (ns_rr_type(record) != ns_t_srv || ns_rr_rdlen(record) < 7)
			continue;
		const unsigned char *data = ns_rr_rdata(record);
		if (dn_expand(ns_msg_base(message), ns_msg_end(message), data + 6, target, sizeof target) < 0)
			return "again";
		snprintf(text, sizeof text, "%u:%u:%u:%s", ns_get16(data), ns_get16(data + 2), ns_get16(data + 4), target);
		add(text);
	}
	return count > 0 ? NULL : "nodata";
}

int main(void)
{
	char line[MAX_TEXT];
	while (fgets(line, sizeof line, stdin) != NULL) {
		char kind[8], what[MAX_TEXT];
		const char *problem;
		if (sscanf(line, "%7s %1099s", kind, what) != 2) {
			fprintf(stderr, "resolve: not a question: %s", line);
			return 1;
		}
		count = 0;
		if (strcmp(kind, "host") == 0)
			problem = host(what, 0);
		else if (strcmp(kind, "canon") == 0)
			problem = host(what, 1);
		else if (strcmp(kind, "name") == 0)
			problem = name(what);
		else if (strcmp(kind, "srv") == 0)
			problem = srv(what);
		else {
			fprintf(stderr, "resolve: no such kind of question: %s\n", kind);
			return 1;
		}
		printf("%s %s %c", kind, what, problem == NULL ? '=' : '!');
		if (problem != NULL)
			printf(" %s", problem);
		qsort(answers, problem == NULL ? count : 0, sizeof answers[0], compare);
		for (int i = 0; problem == NULL && i < count; i++)
			printf(" %s", answers[i]);
		putchar('\n');
		fflush(stdout);
	}
	return ferror(stdin) != 0;
}
