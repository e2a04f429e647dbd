package pagetest_test

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
)

// reduce returns a PNG with the 256 most frequent colors of another one. A page has few besides those of
// smoothed edges.
func reduce(picture []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	counts := make(map[color.RGBA]int)
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	area := full.Bounds()
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), bytes.Compare([]byte{a.R, a.G, a.B}, []byte{b.R, b.G, b.B}))
	})
	var palette color.Palette
	for _, c := range frequent[:min(len(frequent), 256)] {
		palette = append(palette, c)
	}
	indexes := make(map[color.RGBA]uint8, len(counts))
	for c := range counts {
		indexes[c] = uint8(palette.Index(c))
	}
	small := image.NewPaletted(area, palette)
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			small.SetColorIndex(x, y, indexes[at(x, y)])
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small)
	return b.Bytes(), err
}
