package apiserver

import (
	"context"
	"os"
)

// Backup copies etcd's data, for Restore. The API server and etcd end for that, and are started again.
func (s *Server) Backup(ctx context.Context) error {
	s.Close()
	if err := os.RemoveAll(s.path("backup")); err != nil {
		return err
	}
	if err := os.CopyFS(s.path("backup"), os.DirFS(s.path("etcd"))); err != nil {
		return err
	}
	return s.reopen(ctx)
}

// Restore puts etcd's data back to the last Backup: objects are as they were then, and their versions go back. The API
// server and etcd end for that, and are started again on the same ports.
func (s *Server) Restore(ctx context.Context) error {
	s.Close()
	if err := os.RemoveAll(s.path("etcd")); err != nil {
		return err
	}
	if err := os.CopyFS(s.path("etcd"), os.DirFS(s.path("backup"))); err != nil {
		return err
	}
	return s.reopen(ctx)
}

// reopen starts etcd and the API server on the data and the ports of before.
func (s *Server) reopen(ctx context.Context) error {
	if err := s.startEtcd(ctx); err != nil {
		return err
	}
	return s.startAPI(ctx)
}
