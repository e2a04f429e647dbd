//go:build !linux

package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

// runSampleNode does nothing: a node needs Linux.
func runSampleNode(context.Context, string, io.Writer, io.Writer) {}

func newSampleNodeCommand() *cobra.Command { return &cobra.Command{Use: "sample-node", Hidden: true} }
