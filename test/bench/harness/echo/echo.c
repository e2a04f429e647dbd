/*
 * The price of the socket itself: every datagram goes back to its sender as a
 * DNS answer with no records, made as long as a server's answer would be by
 * zeros at its end.
 *
 * echo ADDRESS PORT LENGTH RCODE [CONNECTIONS] listens on an IPv4 address, answers with datagrams of
 * LENGTH bytes (a query that is longer goes back in its own length) and runs until it
 * is killed. With CONNECTIONS, another process accepts TCP connections at the same port, reads nothing,
 * and keeps that many of them open.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The most connections that are kept open. */
#define MOST 1000

/* accept_all accepts connections until its parent ends. */
static int accept_all(const struct sockaddr_in *here, int keep)
{
	static int open_fds[MOST];
	int yes = 1, next = 0, fd = socket(AF_INET, SOCK_STREAM, 0);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	    bind(fd, (const struct sockaddr *)here, sizeof(*here)) < 0 || listen(fd, MOST) < 0) {
		perror("echo: listening");
		return 1;
	}
	for (;; next = (next + 1) % keep) {
		int conn = accept(fd, NULL, NULL);

		if (open_fds[next] > 0)
			close(open_fds[next]);
		open_fds[next] = conn;
	}
}

int main(int argc, char **argv)
{
	static unsigned char packet[65536];
	struct sockaddr_in here, client;
	size_t length;
	int fd, rcode, keep;

	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: echo ADDRESS PORT LENGTH RCODE [CONNECTIONS]\n");
		return 2;
	}
	length = (size_t)atoi(argv[3]);
	rcode = atoi(argv[4]);
	keep = argc == 6 ? atoi(argv[5]) : 0;
	if (length > sizeof(packet)) {
		fprintf(stderr, "echo: LENGTH is more than a datagram holds\n");
		return 2;
	}
	if (keep < 0 || keep > MOST) {
		fprintf(stderr, "echo: CONNECTIONS is more than %d\n", MOST);
		return 2;
	}
	memset(&here, 0, sizeof(here));
	here.sin_family = AF_INET;
	here.sin_port = htons((unsigned short)atoi(argv[2]));
	if (inet_pton(AF_INET, argv[1], &here.sin_addr) != 1) {
		fprintf(stderr, "echo: ADDRESS is not one of IPv4\n");
		return 2;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&here, sizeof(here)) < 0) {
		perror("echo: binding");
		return 1;
	}
	if (keep && fork() == 0)
		return accept_all(&here, keep);
	for (;;) {
		socklen_t size = sizeof(client);
		ssize_t got = recvfrom(fd, packet, sizeof(packet), 0, (struct sockaddr *)&client, &size);

		if (got < 12)
			continue;
		packet[2] |= 0x80;                          /* QR */
		packet[3] = (unsigned char)(0x80 | rcode);  /* RA */
		if ((size_t)got < length) {
			memset(packet + got, 0, length - (size_t)got);
			got = (ssize_t)length;
		}
		sendto(fd, packet, (size_t)got, 0, (struct sockaddr *)&client, size);
	}
}
