//go:build !amd64 || purego

package reduce

func scalar() table { return portable }
func vector() table { return portable }
