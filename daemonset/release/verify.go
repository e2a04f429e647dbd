package main

import (
	"context"
	"errors"
	"io"
)

func runVerify(context.Context, []string, io.Writer, io.Writer) error { return errors.New("") }
func runMake(context.Context, []string, io.Writer, io.Writer) error   { return errors.New("") }
