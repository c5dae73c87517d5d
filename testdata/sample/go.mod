module sample

go 1.21
